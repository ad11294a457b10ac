/* Files that the twin shows: what programs open under /sys and /dev is looked for in the twin's folder first.
 *
 * The library stands in front of libc's functions that take a path; programs that make system calls of their own
 * pass by it.
 */
#include "live.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What is under these is the twin's alone: a device of the machine's own is not seen. */
static const char *const ours[] = {"/sys/class/infiniband", "/dev/infiniband", "/sys/class/misc/rdma_cm"};
/* Of these the twin adds to what is there. */
static const char *const shared[] = {"/sys/class/net/", "/sys/bus/pci/devices/", "/sys/devices/",
                                      "/proc/cpuinfo"}; /* there by the twin's clock alone */

static int starts(const char *path, const char *with) { return !strncmp(path, with, strlen(with)); }

const char *live_path(const char *path, char *room) {
    if (!live_root || !path || path[0] != '/') return path;
    int whole = 0, part = 0;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) whole |= starts(path, ours[i]);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) part |= starts(path, shared[i]);
    if (!whole && !part) return path;
    if (snprintf(room, PATH_BYTES, "%s%s", live_root, path) >= PATH_BYTES) return path;
    return whole || !syscall(SYS_faccessat, AT_FDCWD, room, F_OK) ? room : path;
}

/* The argument after `flags` of a function that opens, where there is one. */
#define TAKE_MODE(flags, mode)                                                                                         \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

#define OPENS(name)                                                                                                    \
    DECLARE_REAL(name);                                                                                                \
    int name(const char *path, int flags, ...) {                                                                       \
        char room[PATH_BYTES];                                                                                         \
        mode_t mode = 0;                                                                                               \
        TAKE_MODE(flags, mode)                                                                                         \
        if (live_is_device(path)) return live_open(path);                                                              \
        return REAL(name)(live_path(path, room), flags, mode);                                                         \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                                                 \
    DECLARE_REAL(name);                                                                                                \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        char room[PATH_BYTES];                                                                                         \
        mode_t mode = 0;                                                                                               \
        TAKE_MODE(flags, mode)                                                                                         \
        if (live_is_device(path)) return live_open(path);                                                              \
        return REAL(name)(folder, live_path(path, room), flags, mode);                                                 \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

/* What _FORTIFY_SOURCE makes of open() without a mode. */
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags); }

/* Functions with a path among their parameters: the rest is passed on. */
#define TAKES_PATH(type, name, parameters, ...)                                                                        \
    DECLARE_REAL(name);                                                                                                \
    type name parameters {                                                                                             \
        char room[PATH_BYTES];                                                                                         \
        return REAL(name)(__VA_ARGS__);                                                                                \
    }
TAKES_PATH(FILE *, fopen, (const char *path, const char *mode), live_path(path, room), mode)
TAKES_PATH(FILE *, fopen64, (const char *path, const char *mode), live_path(path, room), mode)
TAKES_PATH(DIR *, opendir, (const char *path), live_path(path, room))
TAKES_PATH(int, scandir,
           (const char *path, struct dirent ***list, int (*select)(const struct dirent *),
            int (*compare)(const struct dirent **, const struct dirent **)),
           live_path(path, room), list, select, compare)
TAKES_PATH(int, scandir64,
           (const char *path, struct dirent64 ***list, int (*select)(const struct dirent64 *),
            int (*compare)(const struct dirent64 **, const struct dirent64 **)),
           live_path(path, room), list, select, compare)
TAKES_PATH(int, access, (const char *path, int mode), live_path(path, room), mode)
TAKES_PATH(int, euidaccess, (const char *path, int mode), live_path(path, room), mode)
TAKES_PATH(int, faccessat, (int folder, const char *path, int mode, int flags), folder, live_path(path, room), mode,
           flags)
TAKES_PATH(ssize_t, readlink, (const char *path, char *to, size_t size), live_path(path, room), to, size)
TAKES_PATH(ssize_t, readlinkat, (int folder, const char *path, char *to, size_t size), folder, live_path(path, room),
           to, size)
TAKES_PATH(int, chdir, (const char *path), live_path(path, room))

#define STATS(name, record)                                                                                            \
    DECLARE_REAL(name);                                                                                                \
    int name(const char *path, struct record *to) {                                                                    \
        char room[PATH_BYTES];                                                                                         \
        if (live_is_device(path) && !REAL(name)(live_path(path, room), to)) {                                          \
            live_stat_device(path, (struct stat *)to);                                                                 \
            return 0;                                                                                                  \
        }                                                                                                              \
        return REAL(name)(live_path(path, room), to);                                                                  \
    }
STATS(stat, stat)
STATS(lstat, stat)
STATS(stat64, stat64)
STATS(lstat64, stat64)

#define STATS_AT(name, record)                                                                                         \
    DECLARE_REAL(name);                                                                                                \
    int name(int folder, const char *path, struct record *to, int flags) {                                             \
        char room[PATH_BYTES];                                                                                         \
        int code = REAL(name)(folder, live_path(path, room), to, flags);                                               \
        if (!code && live_is_device(path)) live_stat_device(path, (struct stat *)to);                                  \
        return code;                                                                                                   \
    }
STATS_AT(fstatat, stat)
STATS_AT(fstatat64, stat64)

DECLARE_REAL(statx);
int statx(int folder, const char *path, int flags, unsigned int mask, struct statx *to) {
    char room[PATH_BYTES];
    int code = REAL(statx)(folder, live_path(path, room), flags, mask, to);
    if (!code && live_is_device(path)) {
        struct stat known;
        live_stat_device(path, &known);
        to->stx_mode = (uint16_t)known.st_mode;
        to->stx_rdev_major = (uint32_t)(known.st_rdev >> 8 & 0xfff);
        to->stx_rdev_minor = (uint32_t)(known.st_rdev & 0xff);
    }
    return code;
}

/* The path as the program knows it: without the twin's folder in front. */
static char *as_known(char *found) {
    size_t front = found && live_root ? strlen(live_root) : 0;
    if (front && !strncmp(found, live_root, front) && found[front] == '/')
        memmove(found, found + front, strlen(found + front) + 1);
    return found;
}

DECLARE_REAL(realpath);
char *realpath(const char *path, char *to) {
    char room[PATH_BYTES];
    return as_known(REAL(realpath)(live_path(path, room), to));
}

char *__realpath_chk(const char *path, char *to, size_t size) {
    (void)size;
    return realpath(path, to);
}

DECLARE_REAL(canonicalize_file_name);
char *canonicalize_file_name(const char *path) {
    char room[PATH_BYTES];
    return as_known(REAL(canonicalize_file_name)(live_path(path, room)));
}
