/* Waiting by the twin's clock: a thread says what for, on a socket of its own, and the server answers when it is over. */
#include "live.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static __thread int own = -1; /* this thread's socket */
static __thread uint32_t number;
static __thread int pending; /* a wait was begun, and its answer has not been read */
static pthread_key_t ends;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void close_own(void *value) {
    syscall(SYS_close, (int)(intptr_t)value - 1);
    own = -1;
}

static void make_key(void) { pthread_key_create(&ends, close_own); }

static int thread_socket(void) {
    if (own >= 0) return own;
    pthread_once(&once, make_key);
    int made = live_connect();
    if (made < 0) return -1;
    /* with a time-out set, a wait that a signal interrupts is never begun again by the kernel (signal(7)) */
    struct timeval long_time = {.tv_sec = 1 << 30};
    setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof long_time);
    pthread_setspecific(ends, (void *)(intptr_t)(made + 1));
    return own = made;
}

void live_waits_after_fork(void) {
    if (own >= 0) syscall(SYS_close, own);
    own = -1;
    pending = 0;
}

int live_begin_wait(uint32_t kind, uint64_t until_ps, uint64_t news) {
    struct live_wait wait = {.kind = kind, .number = ++number, .news = news};
    struct live_request request = {.kind = LIVE_WAIT, .length = sizeof wait, .argument = until_ps};
    struct iovec parts[2] = {{&request, sizeof request}, {&wait, sizeof wait}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = -1;
    for (int tries = 0; tries < 2 && sent < 0; tries++) {
        if (thread_socket() < 0) return -1;
        do sent = sendmsg(own, &message, MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent < 0) own = -1; /* a program that closes what it does not know has closed it */
    }
    if (sent < 0) return -1;
    pending = 1;
    return own;
}

/* Read answers. Returns 1 once the last wait's is there, 0 where it is not (EINTR, or nothing yet). */
static int answered(int flags) {
    struct live_reply reply;
    while (pending) {
        ssize_t got = recv(own, &reply, sizeof reply, flags);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
        if (got < (ssize_t)sizeof reply || reply.number == number) pending = 0;
    }
    return 1;
}

int live_wait_over(void) { return answered(MSG_DONTWAIT); }

int live_end_wait(void) {
    if (!pending) return 1;
    int was = answered(MSG_DONTWAIT);
    if (was) return 1;
    live_tell(own, LIVE_WITHDRAW, number);
    while (!answered(0)) continue;
    return 0;
}

int live_wait(uint32_t kind, uint64_t until_ps, uint64_t news) {
    if (live_begin_wait(kind, until_ps, news) < 0) return ENOTCONN;
    if (answered(0)) return 0;
    live_end_wait();
    return EINTR;
}

/* Say that an answer was seen: the clock waits for that where nothing wakes the thread. */
void live_told(void) { live_tell(own, LIVE_WITHDRAW, number); }
