/* alarm() and setitimer(): the server sends SIGALRM when the twin's clock comes to the instant. */
#include "live.h"

#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

DECLARE_REAL(alarm);
DECLARE_REAL(setitimer);
DECLARE_REAL(getitimer);

static uint64_t due_ps, every_ps; /* of ITIMER_REAL */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now(void) { return __atomic_load_n(&live_clock->now_ps, __ATOMIC_ACQUIRE); }

static struct timeval as_time(uint64_t ps) {
    uint64_t us = (ps + 999999) / 1000000;
    return (struct timeval){.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
}

static struct itimerval current(void) {
    uint64_t at = now(), due = due_ps;
    if (due && due <= at && every_ps) due += ((at - due) / every_ps + 1) * every_ps;
    return (struct itimerval){.it_interval = as_time(every_ps), .it_value = as_time(due > at ? due - at : 0)};
}

int setitimer(__itimer_which_t which, const struct itimerval *to, struct itimerval *before) {
    if (!live_clock || which != ITIMER_REAL) return REAL(setitimer)(which, to, before);
    pthread_mutex_lock(&lock);
    if (before) *before = current();
    int code = 0;
    if (to) {
        int any = to->it_value.tv_sec || to->it_value.tv_usec;
        due_ps = any ? live_after(now(), to->it_value.tv_sec, to->it_value.tv_usec * 1000) : 0;
        every_ps = live_after(0, to->it_interval.tv_sec, to->it_interval.tv_usec * 1000);
        struct live_request request = {.kind = LIVE_TIMER, .length = sizeof every_ps, .argument = due_ps};
        struct live_reply reply;
        int socket = live_connect();
        code = socket < 0 || live_call(socket, &request, &every_ps, &reply, NULL, 0, NULL) ? -1 : 0;
        if (socket >= 0) live_close(socket);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int getitimer(__itimer_which_t which, struct itimerval *to) {
    if (!live_clock || which != ITIMER_REAL) return REAL(getitimer)(which, to);
    pthread_mutex_lock(&lock);
    *to = current();
    pthread_mutex_unlock(&lock);
    return 0;
}

unsigned int alarm(unsigned int seconds) {
    if (!live_clock) return REAL(alarm)(seconds);
    struct itimerval to = {.it_value = {.tv_sec = seconds}}, before;
    if (setitimer(ITIMER_REAL, &to, &before)) return 0;
    return (unsigned int)before.it_value.tv_sec + (before.it_value.tv_usec > 0);
}
