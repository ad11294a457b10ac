/* Sleeping by the twin's clock, and locks that are given up at an instant of it. */
#include "live.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

uint64_t live_instant(clockid_t clock, const struct timespec *at);

#define NS_PER_S 1000000000L
#define LOOKED_AFTER_NS 1000000L /* of the machine's time: how long after an instant a lock's waiter may notice */

static uint64_t now(void) { return __atomic_load_n(&live_clock->now_ps, __ATOMIC_ACQUIRE); }

DECLARE_REAL(nanosleep);
DECLARE_REAL(clock_nanosleep);
DECLARE_REAL(clock_gettime);

/* Sleep until an instant. Returns 0 or an errno, and what is left then. */
static int sleep_until(uint64_t until_ps, struct timespec *left) {
    live_acted();
    int code = until_ps > now() ? live_wait(LIVE_SLEEP, until_ps, 0) : 0;
    if (code == EINTR && left) {
        uint64_t at = now(), ns = until_ps > at ? (until_ps - at) / 1000 : 0;
        left->tv_sec = (time_t)(ns / NS_PER_S);
        left->tv_nsec = (long)(ns % NS_PER_S);
    }
    return code;
}

static int is_sound(const struct timespec *time) {
    return time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < NS_PER_S;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    if (!live_clock || clock == CLOCK_PROCESS_CPUTIME_ID) return REAL(clock_nanosleep)(clock, flags, time, left);
    if (!is_sound(time)) return EINVAL;
    uint64_t until = flags & TIMER_ABSTIME ? live_instant(clock, time) : live_after(now(), time->tv_sec, time->tv_nsec);
    int code = sleep_until(until, flags & TIMER_ABSTIME ? NULL : left);
    return code == ENOTCONN ? REAL(clock_nanosleep)(clock, 0, &(struct timespec){.tv_nsec = LOOKED_AFTER_NS}, NULL) : code;
}

int nanosleep(const struct timespec *time, struct timespec *left) {
    if (!live_clock) return REAL(nanosleep)(time, left);
    int code = clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
    if (!code) return 0;
    errno = code;
    return -1;
}

int usleep(useconds_t time) {
    struct timespec to = {.tv_sec = time / 1000000, .tv_nsec = (long)(time % 1000000) * 1000};
    return nanosleep(&to, NULL);
}

unsigned int sleep(unsigned int seconds) {
    struct timespec to = {.tv_sec = seconds}, left = {0};
    return nanosleep(&to, &left) ? (unsigned int)left.tv_sec + (left.tv_nsec >= NS_PER_S / 2) : 0;
}

/* Locks: libc's own wait for a little of the machine's time, again and again, until the lock is there or the
 * twin's clock has come to the instant. `again` is what it says when its own time is over. */
#define TIMED(name, parameters, clock, at, attempt, ...)                                                               \
    DECLARE_REAL(name);                                                                                                \
    int name parameters {                                                                                              \
        if (!live_clock) return REAL(name)(__VA_ARGS__);                                                               \
        if (!is_sound(at)) return fails(EINVAL, attempt);                                                              \
        uint64_t until = live_instant(clock, at);                                                                      \
        int over = live_begin_wait(LIVE_LOCK, until, 0) < 0;                                                           \
        for (;;) {                                                                                                     \
            struct timespec soon = soon_by(clock);                                                                     \
            const struct timespec *at = &soon;                                                                         \
            int kept = errno, code = REAL(name)(__VA_ARGS__);                                                          \
            if ((attempt ? (code ? errno : 0) : code) != ETIMEDOUT) {                                                  \
                int said = errno;                                                                                      \
                if (!over) live_end_wait();                                                                            \
                errno = said;                                                                                          \
                return code;                                                                                           \
            }                                                                                                          \
            if (over) return code;                                                                                     \
            errno = kept;                                                                                              \
            if (live_wait_over()) {                                                                                    \
                over = 1; /* one more look: it may be there by now */                                                  \
                live_told();                                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }

static int fails(int code, int by_errno) {
    if (!by_errno) return code;
    errno = code;
    return -1;
}

static struct timespec soon_by(clockid_t clock) {
    struct timespec at;
    REAL(clock_gettime)(clock, &at);
    at.tv_nsec += LOOKED_AFTER_NS;
    if (at.tv_nsec >= NS_PER_S) {
        at.tv_sec++;
        at.tv_nsec -= NS_PER_S;
    }
    return at;
}

TIMED(sem_timedwait, (sem_t *lock, const struct timespec *at), CLOCK_REALTIME, at, 1, lock, at)
TIMED(sem_clockwait, (sem_t *lock, clockid_t clock, const struct timespec *at), clock, at, 1, lock, clock, at)
TIMED(pthread_mutex_timedlock, (pthread_mutex_t *lock, const struct timespec *at), CLOCK_REALTIME, at, 0, lock, at)
TIMED(pthread_mutex_clocklock, (pthread_mutex_t *lock, clockid_t clock, const struct timespec *at), clock, at, 0, lock,
      clock, at)
TIMED(pthread_cond_clockwait,
      (pthread_cond_t *condition, pthread_mutex_t *lock, clockid_t clock, const struct timespec *at), clock, at, 0,
      condition, lock, clock, at)

/* The clock of a condition is in its attributes, which cannot be asked for: bit 1 of the word at 32 in glibc's
 * layout says CLOCK_MONOTONIC (nptl/pthread_cond_common.c, __wrefs). */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *at) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (!live_clock) return real(condition, lock, at);
    return pthread_cond_clockwait(condition, lock, condition->__data.__wrefs & 2 ? CLOCK_MONOTONIC : CLOCK_REALTIME, at);
}
