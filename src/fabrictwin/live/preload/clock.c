/* The twin's clock in place of the machine's: functions that say what time it is.
 *
 * Modelled time stands while anything runs. A program that looks at the clock again and again, and does nothing
 * else, would look for ever: after some looks it waits for the clock to move.
 */
#include "live.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timeb.h>
#include <time.h>
#include <unistd.h>

#define LOOKS 64u /* at one instant, without doing anything else */
#define NS_PER_S 1000000000u
#define FAR_PS (UINT64_C(1) << 62)

const struct live_clock *live_clock;
uint32_t live_slot;

static uint64_t acts; /* what the program has done that shows that it runs; the server reads it */
static __thread uint32_t looks;
static __thread uint64_t looked_at_ps;

DECLARE_REAL(clock_gettime);
DECLARE_REAL(gettimeofday);
DECLARE_REAL(time);

static void count_act(void) { __atomic_store_n(&acts, acts + 1, __ATOMIC_RELAXED); } /* that it moves is enough */

static uint64_t now(void) { return __atomic_load_n(&live_clock->now_ps, __ATOMIC_ACQUIRE); }

uint64_t live_look(void) {
    uint64_t at = now();
    count_act();
    if (at != looked_at_ps) {
        looked_at_ps = at;
        looks = 0;
    }
    if (++looks < LOOKS) return at;
    int kept = errno;
    live_wait(LIVE_LOOK, 0, 0);
    errno = kept;
    looks = LOOKS; /* whoever does nothing else waits at every look from now on */
    return looked_at_ps = now();
}

void live_acted(void) {
    looks = 0;
    count_act();
}

uint64_t live_after(uint64_t now_ps, int64_t seconds, int64_t nanoseconds) {
    if (seconds < 0) return now_ps;
    if (seconds > 1000000) return FAR_PS;
    return now_ps + ((uint64_t)seconds * NS_PER_S + (uint64_t)nanoseconds) * 1000;
}

/* Begin to live by the twin's clock. Where that cannot be, the machine's stays. */
static void *known_page;

void live_join(void) {
    struct live_request request = {.kind = LIVE_JOIN, .argument = (uintptr_t)&acts};
    struct live_reply reply;
    struct live_joined joined;
    int page = -1, socket = live_connect();
    if (socket < 0) return;
    if (live_call(socket, &request, NULL, &reply, &joined, sizeof joined, &page) || page < 0) {
        live_close(socket);
        return;
    }
    /* the socket stays open as long as the process runs this program: the server sees its end */
    void *at = known_page;
    if (!at) at = (void *)syscall(SYS_mmap, NULL, sizeof *live_clock, PROT_READ, MAP_SHARED, page, 0);
    syscall(SYS_close, page);
    if (at == MAP_FAILED) return;
    known_page = at;
    live_slot = joined.slot % LIVE_SLOTS;
    __atomic_store_n(&live_clock, at, __ATOMIC_RELEASE);
    live_trap_counter();
}

/* A child of fork() waits for itself. */
static void join_again(void) {
    if (!live_clock) return;
    live_waits_after_fork();
    live_join();
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, join_again); }

static int is_twins(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: case CLOCK_TAI: case CLOCK_REALTIME_ALARM:
    case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_RAW: case CLOCK_MONOTONIC_COARSE: case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        return live_clock != NULL;
    default:
        return 0; /* time that a process or a thread has used is the machine's */
    }
}

static uint64_t began_ns(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: case CLOCK_TAI: case CLOCK_REALTIME_ALARM:
        return live_clock->epoch_ns;
    default:
        return live_clock->boot_ns;
    }
}

/* An instant on one of the clocks, as the twin counts. */
uint64_t live_instant(clockid_t clock, const struct timespec *at) {
    uint64_t began = began_ns(clock);
    if (at->tv_sec < 0) return 0;
    if (at->tv_sec > INT64_MAX / 2 / (int64_t)NS_PER_S) return FAR_PS;
    uint64_t ns = (uint64_t)at->tv_sec * NS_PER_S + (uint64_t)at->tv_nsec;
    if (ns <= began) return 0;
    return ns - began > FAR_PS / 1000 ? FAR_PS : (ns - began) * 1000;
}

int clock_gettime(clockid_t clock, struct timespec *to) {
    if (!is_twins(clock)) return REAL(clock_gettime)(clock, to);
    uint64_t ns = began_ns(clock) + live_look() / 1000;
    to->tv_sec = (time_t)(ns / NS_PER_S);
    to->tv_nsec = (long)(ns % NS_PER_S);
    return 0;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    if (!live_clock) return REAL(gettimeofday)(to, zone);
    if (zone) memset(zone, 0, sizeof(struct timezone));
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    to->tv_sec = at.tv_sec;
    to->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    if (!live_clock) return REAL(time)(to);
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (to) *to = at.tv_sec;
    return at.tv_sec;
}

int timespec_get(struct timespec *to, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, to) ? base : 0;
}
