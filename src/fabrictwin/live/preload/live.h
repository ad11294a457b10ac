/* The parts of the preloaded library, as they know each other. */
#ifndef FABRICTWIN_LIVE_H
#define FABRICTWIN_LIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "protocol.h"

#define LIVE_DESCRIPTORS 65536
#define PATH_BYTES 4096

enum descriptor_kind { NOT_OURS, VERBS_DEVICE, CM_DEVICE, NETLINK_SOCKET };

/* What stands behind a descriptor of the program that is a device's. */
struct device {
    int socket;                   /* where commands go; hidden from the program. -1: it is the descriptor itself */
    int kind;                     /* enum descriptor_kind */
    int minor;                    /* of uverbsN: N; of a netlink socket: its port id */
    struct live_control *control;
};

/* start.c: how the program was started */
extern const char *live_root;   /* folder with the files that the twin shows; NULL: the library does nothing */
extern const char *live_socket; /* the server's socket */
extern const char *live_host;   /* the host that the program runs on */
extern int live_own_network;    /* the host has a network namespace of its own */

/* devices.c */
struct device *live_device(int descriptor);
void live_adopt(int descriptor, int socket, int kind, int minor, struct live_control *control);
int live_open(const char *path);             /* a descriptor; -1: errno says why */
int live_is_device(const char *path);        /* enum descriptor_kind */
void live_stat_device(const char *path, struct stat *to);

/* transport.c */
int live_connect(void);
int live_call(int socket, struct live_request *request, const void *payload, struct live_reply *reply, void *out,
              size_t room, int *descriptor);
int live_tell(int socket, uint32_t kind, uint64_t argument);
void live_close(int socket);

/* interfaces.c: network interfaces of the twin's adapters */
struct ifreq;
void live_note_route_socket(int descriptor);
void live_forget_route_socket(int descriptor);
void live_note_question(int descriptor, const void *data, size_t length); /* what goes out by a socket */
size_t live_add_interfaces(int descriptor, char *data, size_t got, size_t room); /* what came in; its new length */
int live_interface_ioctl(unsigned long request, struct ifreq *about); /* 0; -1: it is not about one of the twin's */

/* addresses.c: addresses of the twin's hosts */
struct sockaddr;
struct sockaddr_storage;
/* Where an address is to be reached on this machine: itself, or what was put into `room`. */
const struct sockaddr *live_here(const struct sockaddr *address, socklen_t length, struct sockaddr_storage *room);
void live_note_bound(int descriptor, int is); /* whether a socket was bound to such an address */
void live_name_bound(int descriptor, struct sockaddr *address, socklen_t length);
void live_forget_address(int descriptor);

/* netlink.c */
int live_open_netlink(int type); /* a descriptor; -1: errno says why */

/* commands.c */
ssize_t live_verbs_command(int descriptor, struct device *device, const void *command, size_t length);
struct ib_uverbs_ioctl_hdr;
int live_verbs_ioctl(struct device *device, struct ib_uverbs_ioctl_hdr *call);
ssize_t live_cm_command(int descriptor, struct device *device, const void *command, size_t length);

/* clock.c: the twin's clock */
extern const struct live_clock *live_clock; /* NULL: programs see the machine's own */
extern uint32_t live_slot;
void live_join(void);
uint64_t live_look(void);  /* now in ps; waits where a program does nothing but look */
void live_acted(void);     /* the program does something else than look at the clock */
uint64_t live_after(uint64_t now_ps, int64_t seconds, int64_t nanoseconds);

/* waits.c: what a thread waits for by the twin's clock */
int live_wait(uint32_t kind, uint64_t until_ps, uint64_t news); /* 0, or an errno: EINTR */
int live_begin_wait(uint32_t kind, uint64_t until_ps, uint64_t news); /* a descriptor, readable once it is over; -1 */
int live_wait_over(void);  /* whether the wait that was begun is over */
int live_end_wait(void);   /* the same, and ends it if it is not */
void live_told(void);      /* says that the end of a wait for a lock was seen */
void live_waits_after_fork(void);

/* tsc.c: the time stamp counter */
void live_trap_counter(void);

/* paths.c */
const char *live_path(const char *path, char *room); /* the path that is to be opened instead, perhaps in `room` */

/* The function of that name that this library stands in front of. */
#define REAL(name) ((__typeof__(&name))live_real((void **)&real_##name, #name))
#define DECLARE_REAL(name) static void *real_##name
static inline void *live_real(void **known, const char *name) {
    if (!*known) *known = dlsym(RTLD_NEXT, name);
    return *known;
}

#endif
