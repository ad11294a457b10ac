/* Looks at every clock and sleeps in every way that there is; prints a line for each: name, microseconds by
 * CLOCK_MONOTONIC, and by the time stamp counter. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double by_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double mhz;
static double by_counter(void) { return (double)__builtin_ia32_rdtsc() / mhz; }

static double clock_at, counter_at;
static void begin(void) {
    clock_at = by_clock(CLOCK_MONOTONIC);
    counter_at = by_counter();
}
static void say(const char *name) {
    double clock = by_clock(CLOCK_MONOTONIC) - clock_at, counter = by_counter() - counter_at;
    printf("%s %.3f %.3f\n", name, clock, counter);
    fflush(stdout);
    begin();
}

static volatile sig_atomic_t alarms;
static void on_alarm(int number) { (void)number, alarms++; }

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static void *signaller(void *argument) {
    (void)argument;
    usleep(30000);
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct timespec in_ms(clockid_t clock, long ms) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ms * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static void wait_for_descriptors(void) {
    int ends[2];
    if (pipe(ends)) exit(1);
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    if (poll(&one, 1, 250)) exit(2);
    say("poll");
    struct timespec quarter = {.tv_nsec = 250000000};
    if (ppoll(&one, 1, &quarter, NULL)) exit(3);
    say("ppoll");
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    struct timeval time = {.tv_usec = 250000};
    if (select(ends[0] + 1, &set, NULL, NULL, &time) || FD_ISSET(ends[0], &set)) exit(4);
    say("select");
    int all = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN}, got;
    epoll_ctl(all, EPOLL_CTL_ADD, ends[0], &event);
    if (epoll_wait(all, &got, 1, 250)) exit(5);
    say("epoll_wait");
    if (!fork()) { /* readable before the time is over */
        usleep(100000);
        _exit(write(ends[1], "x", 1) != 1);
    }
    if (poll(&one, 1, 5000) != 1) exit(6);
    say("poll-found");
    FD_SET(ends[0], &set);
    time.tv_sec = 1;
    if (select(ends[0] + 1, &set, NULL, NULL, &time) != 1 || !FD_ISSET(ends[0], &set)) exit(7);
    if (epoll_wait(all, &got, 1, 1000) != 1) exit(8);
    wait(NULL);
    say("found-at-once");
}

static void wait_for_locks(void) {
    struct timespec at = in_ms(CLOCK_REALTIME, 40);
    pthread_mutex_lock(&lock);
    if (pthread_cond_timedwait(&condition, &lock, &at) != ETIMEDOUT) exit(9);
    pthread_mutex_unlock(&lock);
    say("cond_timedwait");
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    at = in_ms(CLOCK_REALTIME, 40);
    if (!sem_timedwait(&semaphore, &at) || errno != ETIMEDOUT) exit(10);
    say("sem_timedwait");
    pthread_t thread;
    pthread_mutex_lock(&lock);
    pthread_create(&thread, NULL, signaller, NULL);
    at = in_ms(CLOCK_REALTIME, 5000);
    if (pthread_cond_timedwait(&condition, &lock, &at)) exit(11);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    say("cond-signalled");
}

static void wait_for_alarms(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    alarm(2);
    pause();
    say("alarm");
    struct itimerval every = {.it_interval = {.tv_usec = 10000}, .it_value = {.tv_usec = 10000}}, none = {0};
    setitimer(ITIMER_REAL, &every, NULL);
    while (alarms < 6) pause();
    setitimer(ITIMER_REAL, &none, NULL);
    say("setitimer");
    alarm(1);
    struct timespec long_time = {.tv_sec = 100}, left;
    if (!nanosleep(&long_time, &left) || errno != EINTR || left.tv_sec != 99) exit(12);
    say("interrupted");
}

int main(void) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "cpu MHz", 7)) mhz = atof(strchr(line, ':') + 1);
    fclose(file);
    begin();
    usleep(1500);
    say("usleep");
    sleep(3600);
    say("sleep");
    struct timespec at = in_ms(CLOCK_MONOTONIC, 7);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    say("clock_nanosleep");
    wait_for_descriptors();
    wait_for_locks();
    wait_for_alarms();
    struct timeval of_day;
    gettimeofday(&of_day, NULL);
    printf("wall %ld %ld %.0f\n", (long)time(NULL), (long)of_day.tv_sec, by_clock(CLOCK_REALTIME) / 1e6 - 0.5);
    double before = by_clock(CLOCK_MONOTONIC);
    while (by_clock(CLOCK_MONOTONIC) < before + 1000) continue; /* does nothing but look */
    begin();
    return 0;
}
