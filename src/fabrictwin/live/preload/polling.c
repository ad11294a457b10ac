/* Polls that find nothing give the processor away; by the twin's clock they wait for something to be found.
 *
 * On hardware a program may spin on its completion queue; here whoever is to make the completion may wait for that
 * very processor. ibv_poll_cq() is inline and calls through the public table in struct ibv_context, so that is
 * where the library steps in. Its layout is a part of libibverbs' interface to programs (infiniband/verbs.h).
 */
#include "live.h"

#include <sched.h>

struct operations { /* the beginning of struct ibv_context_ops */
    void *before_poll[11];
    int (*poll_cq)(void *queue, int count, void *completions);
};

struct context { /* struct ibv_context as far as is needed */
    void *device;
    struct operations operations;
};

static int (*poll_beneath)(void *queue, int count, void *completions);

static int poll_or_yield(void *queue, int count, void *completions) {
    if (!live_clock) {
        int found = poll_beneath(queue, count, completions);
        if (!found) sched_yield();
        return found;
    }
    uint64_t news = __atomic_load_n(&live_clock->news[live_slot], __ATOMIC_ACQUIRE);
    int found = poll_beneath(queue, count, completions);
    live_acted();
    if (!found) live_wait(LIVE_NEWS, 0, news);
    return found;
}

/* Programs that load libibverbs themselves keep it out of the global scope: RTLD_NEXT does not find it there. */
static void *beneath(const char *name) {
    void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? dlvsym(library, name, "IBVERBS_1.1") : NULL;
    if (library) dlclose(library);
    return found;
}

void *ibv_open_device(void *device) {
    static void *(*real)(void *);
    if (!real) real = (void *(*)(void *))beneath("ibv_open_device");
    if (!real) {
        errno = ENOSYS;
        return NULL;
    }
    struct context *context = real(device);
    if (context && live_root && context->operations.poll_cq != poll_or_yield) {
        poll_beneath = context->operations.poll_cq;
        context->operations.poll_cq = poll_or_yield;
    }
    return context;
}

/* librxe asks the kernel's neighbour table for the MAC behind a GID (an address handle's); the twin's hosts are
 * not in that table, so the twin is asked. */
struct global_route {
    uint8_t gid[16];
};

int ibv_resolve_eth_l2_from_gid(void *context, struct global_route *attributes, uint8_t *mac, uint16_t *vlan) {
    static int (*real)(void *, void *, uint8_t *, uint16_t *);
    if (!live_root) {
        if (!real) real = (int (*)(void *, void *, uint8_t *, uint16_t *))beneath("ibv_resolve_eth_l2_from_gid");
        return real ? real(context, attributes, mac, vlan) : (errno = ENOSYS);
    }
    struct live_request request = {.kind = LIVE_ADDRESS, .length = sizeof attributes->gid};
    struct live_reply reply;
    int socket = live_connect();
    if (socket < 0) return errno;
    int code = live_call(socket, &request, attributes->gid, &reply, mac, 6, NULL) ? errno : 0;
    live_close(socket);
    if (vlan) *vlan = 0xffff;
    return code;
}
