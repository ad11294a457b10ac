/* Addresses of the twin's hosts, as programs of sockets use them: 10.0.0.2 is at 127.0.0.2 of this machine.
 *
 * All hosts share the machine's network unless each has a namespace of its own. What they say to each other by
 * addresses of the twin goes over the loopback interface then, and takes no modelled time.
 */
#include "live.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOPBACK (127u << 24)

DECLARE_REAL(connect);
DECLARE_REAL(getpeername);

static uint32_t first_ip, last_ip; /* of the twin's adapters, in the machine's byte order; 0: there are none */
static uint8_t moved[LIVE_DESCRIPTORS]; /* what a socket is bound or connected to was an address of the twin's */

enum { BOUND = 1, CONNECTED = 2 };

__attribute__((constructor)) static void read_range(void) {
    const char *root = getenv("FABRICTWIN_LIVE_ROOT");
    char path[PATH_BYTES];
    uint32_t range[2];
    if (!root || snprintf(path, sizeof path, "%s/netlink/hosts", root) >= PATH_BYTES) return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (syscall(SYS_read, file, range, sizeof range) == sizeof range) first_ip = ntohl(range[0]), last_ip = ntohl(range[1]);
    syscall(SYS_close, file);
}

/* Where the four bytes of an address are, also within one of IPv6; -1: it has none. */
static int ip_at(const struct sockaddr *address, socklen_t length) {
    if (length >= sizeof(struct sockaddr_in) && address->sa_family == AF_INET)
        return offsetof(struct sockaddr_in, sin_addr);
    if (length >= sizeof(struct sockaddr_in6) && address->sa_family == AF_INET6 &&
        IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)address)->sin6_addr))
        return offsetof(struct sockaddr_in6, sin6_addr) + 12;
    return -1;
}

const struct sockaddr *live_here(const struct sockaddr *address, socklen_t length, struct sockaddr_storage *room) {
    if (!first_ip || live_own_network || !address || length < sizeof(struct sockaddr_in) || length > sizeof *room)
        return address;
    int at = ip_at(address, length);
    if (at < 0) return address;
    uint32_t ip;
    memcpy(&ip, (const char *)address + at, sizeof ip);
    ip = ntohl(ip);
    if (ip < first_ip || ip > last_ip) return address;
    memcpy(room, address, length);
    ip = htonl(LOOPBACK | (ip & 0xFFFFFF));
    memcpy((char *)room + at, &ip, sizeof ip);
    return (const struct sockaddr *)room;
}

/* The way back. */
static void name_again(struct sockaddr *address, socklen_t length) {
    int at = ip_at(address, length);
    if (at < 0) return;
    uint32_t ip;
    memcpy(&ip, (char *)address + at, sizeof ip);
    ip = htonl((first_ip & 0xFF000000u) | (ntohl(ip) & 0xFFFFFF));
    memcpy((char *)address + at, &ip, sizeof ip);
}

static void note(int descriptor, int what, int is) {
    if (descriptor < 0 || descriptor >= LIVE_DESCRIPTORS) return;
    if (is) moved[descriptor] |= (uint8_t)what;
    else if (moved[descriptor]) moved[descriptor] &= (uint8_t)~what;
}

void live_note_bound(int descriptor, int is) { note(descriptor, BOUND, is); }

void live_forget_address(int descriptor) {
    if (descriptor >= 0 && descriptor < LIVE_DESCRIPTORS && moved[descriptor]) moved[descriptor] = 0;
}

void live_name_bound(int descriptor, struct sockaddr *address, socklen_t length) {
    if (descriptor >= 0 && descriptor < LIVE_DESCRIPTORS && moved[descriptor] & BOUND) name_again(address, length);
}

int connect(int descriptor, __CONST_SOCKADDR_ARG address, socklen_t length) {
    struct sockaddr_storage room;
    const struct sockaddr *here = live_here(address.__sockaddr__, length, &room);
    if (first_ip) note(descriptor, CONNECTED, here != address.__sockaddr__);
    return REAL(connect)(descriptor, here, length);
}

int getpeername(int descriptor, __SOCKADDR_ARG address, socklen_t *restrict length) {
    int code = REAL(getpeername)(descriptor, address, length);
    if (!code && descriptor >= 0 && descriptor < LIVE_DESCRIPTORS && moved[descriptor] & CONNECTED)
        name_again(address.__sockaddr__, *length);
    return code;
}
