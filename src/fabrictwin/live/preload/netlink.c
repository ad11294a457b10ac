/* Sockets of RDMA netlink (rdma-core's and iproute2's questions to the kernel).
 *
 * The descriptor that a program gets is its connection to the server, over which messages go as they are: waiting
 * and reading are the kernel's own. Only addresses are made up here: a unix socket has none of netlink's.
 */
#include "live.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

DECLARE_REAL(bind);
DECLARE_REAL(getsockname);
DECLARE_REAL(getsockopt);
DECLARE_REAL(recv);
DECLARE_REAL(recvfrom);
DECLARE_REAL(recvmsg);
DECLARE_REAL(send);
DECLARE_REAL(sendmsg);
DECLARE_REAL(sendto);
DECLARE_REAL(setsockopt);

static struct device *netlink_at(int descriptor) {
    struct device *device = live_device(descriptor);
    return device && device->kind == NETLINK_SOCKET ? device : NULL;
}

int live_open_netlink(int type) {
    char name[256];
    int length = snprintf(name, sizeof name, "%s/netlink", live_host);
    struct live_request request = {.kind = LIVE_OPEN, .length = (uint32_t)length, .argument = LIVE_PROTOCOL};
    struct live_reply reply;
    if (length >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int hidden = live_connect();
    if (hidden < 0) return -1;
    int descriptor = -1;
    if (!live_call(hidden, &request, name, &reply, NULL, 0, NULL))
        descriptor = fcntl(hidden, type & SOCK_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
    int code = errno;
    live_close(hidden);
    if (descriptor < 0 || descriptor >= LIVE_DESCRIPTORS) {
        if (descriptor >= 0) live_close(descriptor);
        errno = descriptor < 0 ? code : EMFILE;
        return -1;
    }
    if (type & SOCK_NONBLOCK) fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
    live_adopt(descriptor, -1, NETLINK_SOCKET, getpid(), NULL);
    return descriptor;
}

/* Put a netlink address where a call wants one. */
static void name_port(void *to, socklen_t *room, uint32_t port) {
    struct sockaddr_nl name = {.nl_family = AF_NETLINK, .nl_pid = port};
    memcpy(to, &name, *room < sizeof name ? *room : sizeof name);
    *room = sizeof name;
}

int bind(int descriptor, __CONST_SOCKADDR_ARG address, socklen_t length) {
    struct device *device = netlink_at(descriptor);
    if (!device) {
        struct sockaddr_storage place;
        const struct sockaddr *here = live_here(address.__sockaddr__, length, &place);
        live_note_bound(descriptor, here != address.__sockaddr__);
        return REAL(bind)(descriptor, here, length);
    }
    struct sockaddr_nl name;
    if (length < sizeof name) {
        errno = EINVAL;
        return -1;
    }
    memcpy(&name, address.__sockaddr__, sizeof name);
    if (name.nl_pid) device->minor = (int)name.nl_pid;
    return 0;
}

int getsockname(int descriptor, __SOCKADDR_ARG address, socklen_t *room) {
    struct device *device = netlink_at(descriptor);
    if (!device) {
        int code = REAL(getsockname)(descriptor, address, room);
        if (!code) live_name_bound(descriptor, address.__sockaddr__, *room);
        return code;
    }
    name_port(address.__sockaddr__, room, (uint32_t)device->minor);
    return 0;
}

/* Extended acknowledgements, strict checks: what is answered does not depend on them. */
int setsockopt(int descriptor, int level, int name, const void *value, socklen_t length) {
    if (level == SOL_NETLINK && netlink_at(descriptor)) return 0;
    return REAL(setsockopt)(descriptor, level, name, value, length);
}

int getsockopt(int descriptor, int level, int name, void *restrict value, socklen_t *restrict length) {
    if (level == SOL_NETLINK && netlink_at(descriptor)) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return REAL(getsockopt)(descriptor, level, name, value, length);
}

ssize_t sendto(int descriptor, const void *data, size_t length, int flags, __CONST_SOCKADDR_ARG to, socklen_t room) {
    if (!netlink_at(descriptor)) {
        struct sockaddr_storage place;
        live_note_question(descriptor, data, length);
        return REAL(sendto)(descriptor, data, length, flags, live_here(to.__sockaddr__, room, &place), room);
    }
    return REAL(send)(descriptor, data, length, flags | MSG_NOSIGNAL);
}

ssize_t send(int descriptor, const void *data, size_t length, int flags) {
    live_note_question(descriptor, data, length);
    return REAL(send)(descriptor, data, length, flags);
}

ssize_t recv(int descriptor, void *data, size_t length, int flags) {
    ssize_t got = REAL(recv)(descriptor, data, length, flags);
    if (got <= 0 || flags & MSG_PEEK) return got;
    return (ssize_t)live_add_interfaces(descriptor, data, (size_t)got, length);
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags) {
    if (!netlink_at(descriptor)) {
        struct sockaddr_storage place;
        struct msghdr moved = *message;
        if (message->msg_iovlen) live_note_question(descriptor, message->msg_iov->iov_base, message->msg_iov->iov_len);
        moved.msg_name = (void *)live_here(message->msg_name, message->msg_namelen, &place);
        return REAL(sendmsg)(descriptor, &moved, flags);
    }
    struct msghdr bare = {.msg_iov = message->msg_iov, .msg_iovlen = message->msg_iovlen};
    return REAL(sendmsg)(descriptor, &bare, flags | MSG_NOSIGNAL);
}

ssize_t recvfrom(int descriptor, void *restrict data, size_t length, int flags, __SOCKADDR_ARG from,
                 socklen_t *restrict room) {
    if (!netlink_at(descriptor)) {
        ssize_t came = REAL(recvfrom)(descriptor, data, length, flags, from, room);
        return came > 0 && !(flags & MSG_PEEK) ? (ssize_t)live_add_interfaces(descriptor, data, (size_t)came, length)
                                               : came;
    }
    ssize_t got = REAL(recv)(descriptor, data, length, flags);
    if (got >= 0 && from.__sockaddr__ && room) name_port(from.__sockaddr__, room, 0);
    return got;
}

ssize_t recvmsg(int descriptor, struct msghdr *message, int flags) {
    socklen_t room = message->msg_namelen;
    ssize_t got = REAL(recvmsg)(descriptor, message, flags);
    if (got > 0 && message->msg_iovlen && !(flags & MSG_PEEK))
        got = (ssize_t)live_add_interfaces(descriptor, message->msg_iov->iov_base, (size_t)got, message->msg_iov->iov_len);
    if (got >= 0 && message->msg_name && netlink_at(descriptor)) {
        name_port(message->msg_name, &room, 0);
        message->msg_namelen = room;
        message->msg_flags &= ~MSG_EOR;
    }
    return got;
}
