/* Descriptors of /dev/infiniband/uverbsN and /dev/infiniband/rdma_cm.
 *
 * The descriptor that a program gets is the file that the server puts its queues in (uverbs) or the pipe that is
 * readable while events wait (rdma_cm), so that mmap() and poll() on it are the kernel's own. Commands take a
 * socket of their own beside it.
 */
#include "live.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define VERBS_MAJOR 231 /* drivers/infiniband/core/uverbs_main.c */
#define VERBS_FIRST_MINOR 192
#define MISC_MAJOR 10
#define CM_MINOR 120
#define VERBS_PREFIX "/dev/infiniband/uverbs"
#define CM_PATH "/dev/infiniband/rdma_cm"

DECLARE_REAL(close);
DECLARE_REAL(dup);
DECLARE_REAL(dup2);
DECLARE_REAL(dup3);
DECLARE_REAL(fcntl);
DECLARE_REAL(fcntl64);
DECLARE_REAL(fstat);
DECLARE_REAL(fstat64);
DECLARE_REAL(ioctl);
DECLARE_REAL(socket);
DECLARE_REAL(write);

static struct device devices[LIVE_DESCRIPTORS]; /* by descriptor; pages that nobody touches cost nothing */

struct device *live_device(int descriptor) {
    if (descriptor < 0 || descriptor >= LIVE_DESCRIPTORS) return NULL;
    return __atomic_load_n(&devices[descriptor].kind, __ATOMIC_ACQUIRE) == NOT_OURS ? NULL : &devices[descriptor];
}

/* From now on a descriptor is a device's. */
void live_adopt(int descriptor, int socket, int kind, int minor, struct live_control *control) {
    struct device *device = &devices[descriptor];
    device->socket = socket;
    device->minor = minor;
    device->control = control;
    __atomic_store_n(&device->kind, kind, __ATOMIC_RELEASE);
}

int live_is_device(const char *path) {
    if (!live_root || !path) return NOT_OURS;
    if (!strcmp(path, CM_PATH)) return CM_DEVICE;
    return !strncmp(path, VERBS_PREFIX, sizeof VERBS_PREFIX - 1) ? VERBS_DEVICE : NOT_OURS;
}

static int minor_of(const char *path) { return atoi(path + sizeof VERBS_PREFIX - 1); }

static void describe(int kind, int minor, struct stat *to) {
    to->st_mode = S_IFCHR | 0666;
    to->st_size = 0;
    to->st_rdev = kind == CM_DEVICE ? makedev(MISC_MAJOR, CM_MINOR) : makedev(VERBS_MAJOR, VERBS_FIRST_MINOR + minor);
}

void live_stat_device(const char *path, struct stat *to) {
    memset(to, 0, sizeof *to);
    to->st_nlink = 1;
    describe(live_is_device(path), minor_of(path), to);
}

int live_open(const char *path) {
    char name[256];
    int kind = live_is_device(path), descriptor;
    int length = snprintf(name, sizeof name, "%s%s", live_host, strrchr(path, '/'));
    struct live_request request = {.kind = LIVE_OPEN, .length = (uint32_t)length, .argument = LIVE_PROTOCOL};
    struct live_reply reply;
    if (length >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int socket = live_connect();
    if (socket < 0) return -1;
    errno = 0;
    if (live_call(socket, &request, name, &reply, NULL, 0, &descriptor) || descriptor < 0 ||
        descriptor >= LIVE_DESCRIPTORS) {
        int code = errno ? errno : ENODEV;
        REAL(close)(socket);
        errno = code;
        return -1;
    }
    void *control = NULL;
    if (kind == VERBS_DEVICE) {
        /* not mmap(): communication libraries patch it to watch what programs map */
        control = (void *)syscall(SYS_mmap, NULL, LIVE_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (control == MAP_FAILED) control = NULL;
    } else {
        live_tell(socket, LIVE_DESCRIPTOR, (uint64_t)descriptor);
    }
    live_adopt(descriptor, socket, kind, kind == VERBS_DEVICE ? minor_of(path) : 0, control);
    return descriptor;
}

/* Give up what stands behind a descriptor. */
static void forget(int descriptor) {
    struct device *device = &devices[descriptor];
    if (__atomic_exchange_n(&device->kind, NOT_OURS, __ATOMIC_ACQ_REL) == NOT_OURS) return;
    struct live_control *control = __atomic_exchange_n(&device->control, NULL, __ATOMIC_ACQ_REL);
    if (control) munmap(control, LIVE_CONTROL_BYTES);
    if (device->socket >= 0) REAL(close)(device->socket);
}

/* A copy of a device's descriptor takes commands by a socket of its own: the server sees both closed, or neither. */
static int adopt_copy(int from, int to) {
    struct device *device = live_device(from);
    if (!device || to < 0 || to >= LIVE_DESCRIPTORS || to == from) return to;
    int hidden = device->socket < 0 ? -1 : REAL(fcntl)(device->socket, F_DUPFD_CLOEXEC, device->socket);
    void *control = NULL;
    if (device->control) {
        control = (void *)syscall(SYS_mmap, NULL, LIVE_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, to, 0);
        if (control == MAP_FAILED) control = NULL;
    }
    live_adopt(to, hidden, device->kind, device->minor, control);
    return to;
}

int dup(int from) { return adopt_copy(from, REAL(dup)(from)); }

#define COPIES(name)                                                                                                   \
    int name(int descriptor, int command, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, command);                                                                                       \
        void *argument = va_arg(rest, void *);                                                                         \
        va_end(rest);                                                                                                  \
        int code = REAL(name)(descriptor, command, argument);                                                          \
        return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? adopt_copy(descriptor, code) : code;                 \
    }
COPIES(fcntl)
COPIES(fcntl64)

int close(int descriptor) {
    if (live_device(descriptor)) forget(descriptor);
    live_forget_route_socket(descriptor);
    live_forget_address(descriptor);
    return REAL(close)(descriptor);
}

int dup2(int from, int to) {
    if (from != to && live_device(to)) forget(to);
    return adopt_copy(from, REAL(dup2)(from, to));
}

int dup3(int from, int to, int flags) {
    if (from != to && live_device(to)) forget(to);
    return adopt_copy(from, REAL(dup3)(from, to, flags));
}

ssize_t write(int descriptor, const void *data, size_t length) {
    struct device *device = live_device(descriptor);
    live_acted();
    if (!device || device->kind == NETLINK_SOCKET) return REAL(write)(descriptor, data, length);
    if (device->kind == VERBS_DEVICE) return live_verbs_command(descriptor, device, data, length);
    return live_cm_command(descriptor, device, data, length);
}

int ioctl(int descriptor, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    struct device *device = live_device(descriptor);
    if (device && device->kind == VERBS_DEVICE) {
        if (request == RDMA_VERBS_IOCTL) return live_verbs_ioctl(device, argument);
        errno = ENOTTY;
        return -1;
    }
    int code = REAL(ioctl)(descriptor, request, argument);
    if (!code || errno != ENODEV || request < SIOCGIFNAME || request > SIOCGIFCOUNT) return code;
    if (!live_interface_ioctl(request, argument)) return 0;
    errno = ENODEV;
    return -1;
}

int fstat(int descriptor, struct stat *to) {
    int code = REAL(fstat)(descriptor, to);
    struct device *device = code ? NULL : live_device(descriptor);
    if (device && device->kind != NETLINK_SOCKET) describe(device->kind, device->minor, to);
    return code;
}

int fstat64(int descriptor, struct stat64 *to) {
    int code = REAL(fstat64)(descriptor, to);
    struct device *device = code ? NULL : live_device(descriptor);
    if (device && device->kind != NETLINK_SOCKET) describe(device->kind, device->minor, (struct stat *)to);
    return code;
}

int socket(int domain, int type, int protocol) {
    if (live_root && domain == AF_NETLINK && protocol == NETLINK_RDMA) return live_open_netlink(type);
    int made = REAL(socket)(domain, type, protocol);
    if (live_root && domain == AF_NETLINK && protocol == NETLINK_ROUTE) live_note_route_socket(made);
    /* By the twin's clock messages between programs take no time: TCP may not keep one back for a time-out of the
     * machine's (tcp(7): Nagle's algorithm beside delayed acknowledgements). What is accepted inherits it. */
    if (live_clock && made >= 0 && (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM) {
        int yes = 1, before = errno;
        setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        errno = before;
    }
    return made;
}
