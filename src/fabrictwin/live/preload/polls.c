/* poll(), select(), epoll_wait() and their kin: time-outs by the twin's clock.
 *
 * The kernel waits for the program's descriptors and for one of ours, which is readable once the time is over. A
 * program that asks with a time-out of 0 again and again waits as one whose polls for completions find nothing.
 */
#include "live.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

#define EMPTY 16u /* looks in a row that found nothing, before one waits */
#define NS_PER_MS 1000000L
#define ON_STACK 64

DECLARE_REAL(poll);
DECLARE_REAL(ppoll);
DECLARE_REAL(select);
DECLARE_REAL(pselect);
DECLARE_REAL(epoll_pwait);
DECLARE_REAL(epoll_wait);

static __thread uint32_t empty;
static const struct timespec at_once;

static uint64_t now(void) { return __atomic_load_n(&live_clock->now_ps, __ATOMIC_ACQUIRE); }

/* ppoll() by the twin's clock. `time` NULL: for ever. */
static int poll_until(struct pollfd *each, nfds_t count, const struct timespec *time, const sigset_t *mask) {
    uint64_t news = __atomic_load_n(&live_clock->news[live_slot], __ATOMIC_ACQUIRE);
    live_acted();
    int found = REAL(ppoll)(each, count, time ? &at_once : NULL, mask);
    if (found || !time) {
        empty = 0;
        return found;
    }
    int looks = !time->tv_sec && !time->tv_nsec;
    if (looks && ++empty < EMPTY) return 0;
    if (!looks) empty = 0;
    struct pollfd room[ON_STACK], *all = count < ON_STACK ? room : malloc((count + 1) * sizeof *all);
    if (!all) {
        errno = ENOMEM;
        return -1;
    }
    memcpy(all, each, count * sizeof *all);
    int over = looks ? live_begin_wait(LIVE_NEWS, 0, news)
                     : live_begin_wait(LIVE_SLEEP, live_after(now(), time->tv_sec, time->tv_nsec), 0);
    all[count] = (struct pollfd){.fd = over, .events = POLLIN};
    found = REAL(ppoll)(all, over < 0 ? count : count + 1, over < 0 ? &at_once : NULL, mask);
    int kept = errno;
    if (over >= 0) live_end_wait();
    if (found > 0 && over >= 0 && all[count].revents) found--;
    if (found > 0) empty = 0;
    memcpy(each, all, count * sizeof *all);
    if (all != room) free(all);
    errno = kept;
    return found;
}

int ppoll(struct pollfd *each, nfds_t count, const struct timespec *time, const sigset_t *mask) {
    return live_clock ? poll_until(each, count, time, mask) : REAL(ppoll)(each, count, time, mask);
}

static struct timespec of_ms(int ms) { return (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS}; }

int poll(struct pollfd *each, nfds_t count, int ms) {
    if (!live_clock) return REAL(poll)(each, count, ms);
    struct timespec time = of_ms(ms);
    return poll_until(each, count, ms < 0 ? NULL : &time, NULL);
}

int __poll_chk(struct pollfd *each, nfds_t count, int ms, size_t size) {
    (void)size;
    return poll(each, count, ms);
}

int __ppoll_chk(struct pollfd *each, nfds_t count, const struct timespec *time, const sigset_t *mask, size_t size) {
    (void)size;
    return ppoll(each, count, time, mask);
}

/* What select() asks of a descriptor, as poll() says it (select(2), "Correspondence between..."). */
#define SELECT_READS (POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define SELECT_WRITES (POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)

static int select_until(int count, fd_set *reads, fd_set *writes, fd_set *others, const struct timespec *time,
                        const sigset_t *mask) {
    struct pollfd each[FD_SETSIZE];
    nfds_t asked = 0;
    if (count < 0 || count > FD_SETSIZE) {
        errno = EINVAL;
        return -1;
    }
    for (int at = 0; at < count; at++) {
        short events = (short)((reads && FD_ISSET(at, reads) ? SELECT_READS & ~(POLLHUP | POLLERR) : 0) |
                               (writes && FD_ISSET(at, writes) ? SELECT_WRITES & ~POLLERR : 0) |
                               (others && FD_ISSET(at, others) ? POLLPRI : 0));
        if (events) each[asked++] = (struct pollfd){.fd = at, .events = events};
    }
    int found = poll_until(each, asked, time, mask), bits = 0;
    if (found < 0) return found;
    for (nfds_t i = 0; i < asked; i++) {
        int at = each[i].fd;
        if (each[i].revents & POLLNVAL) {
            errno = EBADF;
            return -1;
        }
        if (reads && FD_ISSET(at, reads)) {
            if (each[i].revents & SELECT_READS) bits++;
            else FD_CLR(at, reads);
        }
        if (writes && FD_ISSET(at, writes)) {
            if (each[i].revents & SELECT_WRITES) bits++;
            else FD_CLR(at, writes);
        }
        if (others && FD_ISSET(at, others)) {
            if (each[i].revents & POLLPRI) bits++;
            else FD_CLR(at, others);
        }
    }
    return bits;
}

int select(int count, fd_set *reads, fd_set *writes, fd_set *others, struct timeval *time) {
    if (!live_clock) return REAL(select)(count, reads, writes, others, time);
    if (!time) return select_until(count, reads, writes, others, NULL, NULL);
    uint64_t began = now();
    struct timespec to = {.tv_sec = time->tv_sec, .tv_nsec = time->tv_usec * 1000};
    int found = select_until(count, reads, writes, others, &to, NULL);
    uint64_t left = (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec, used = (now() - began) / 1000000;
    left = left > used ? left - used : 0; /* Linux says what is left */
    time->tv_sec = (time_t)(left / 1000000);
    time->tv_usec = (suseconds_t)(left % 1000000);
    return found;
}

int pselect(int count, fd_set *reads, fd_set *writes, fd_set *others, const struct timespec *time, const sigset_t *mask) {
    return live_clock ? select_until(count, reads, writes, others, time, mask)
                      : REAL(pselect)(count, reads, writes, others, time, mask);
}

int epoll_pwait(int set, struct epoll_event *events, int most, int ms, const sigset_t *mask) {
    if (!live_clock || ms < 0) {
        if (live_clock) live_acted();
        return REAL(epoll_pwait)(set, events, most, ms, mask);
    }
    int found = REAL(epoll_pwait)(set, events, most, 0, mask);
    if (found) {
        live_acted();
        empty = 0;
        return found;
    }
    struct pollfd one = {.fd = set, .events = POLLIN};
    struct timespec time = of_ms(ms);
    found = poll_until(&one, 1, &time, mask);
    return found > 0 ? REAL(epoll_pwait)(set, events, most, 0, mask) : found;
}

int epoll_wait(int set, struct epoll_event *events, int most, int ms) {
    return live_clock ? epoll_pwait(set, events, most, ms, NULL) : REAL(epoll_wait)(set, events, most, ms);
}
