/* Whether every process of the twin's programs waits: for the twin, for one another, or for something beside it.
 *
 * The kernel says so (proc(5)): a thread that sleeps waits. All are looked at twice. What a process has used of the
 * processor, read before the first look and after the second (CPU clocks of other processes:
 * clock_getcpuclockid(3)), says whether it ran between them. One that waits at both and did not run waited all the
 * time, so that there was a moment at which all of them did; one look is not enough, as who was seen to wait may have
 * been woken by one that was looked at later.
 *
 * A thread that looks at memory until somebody writes there never sleeps; it waits as well once it has used so much
 * of the processor, since it was last told anything or last did anything, that it would have done something. What it
 * does that shows, the preloaded library counts (live_acted). What others have used is counted when the scheduler
 * looks at them, at every tick or so: it is made to look (`count_now`), and what was used before the first count is
 * not held against a process. Nor is more than a part at a time: a virtual processor that its host takes away for
 * milliseconds passes for one that was used. Children are found as they come.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_PROCESSES 4096
#define NS_PER_S UINT64_C(1000000000)
#define YIELDS 200     /* before the processor is given away for longer */
#define NAP_NS 100000
#define SLICE_NS 100000
#define GONE UINT64_MAX
#define COUNTS 4           /* in which a process has used what shows that it looks at memory, at least */
#define ACTING_NS NS_PER_S /* that it may act for, told nothing: one that goes on is taken to wait as well */

struct process {
    int32_t pid;
    int32_t may_spin;   /* others can write to its memory */
    int32_t running;    /* threads that were found running */
    uint64_t told_ns;   /* what it had used when it was last told anything */
    uint64_t acts_at;   /* where in its memory it counts what it does; 0: it does not */
    uint64_t acts;      /* that count when it was last looked at */
    uint64_t mark_ns;   /* what it had used then */
    int counted;        /* mark_ns was counted since it was told anything, or acted */
    uint64_t idly_ns;   /* what it has used since, as far as that is held against it */
    uint64_t before_ns; /* what it had used when its threads were looked at */
};

static struct process known[MOST_PROCESSES]; /* who was told something last comes first */
static int count;

static uint64_t used_ns(int32_t pid) {
    struct timespec time;
    clockid_t clock = (clockid_t)((~(uint32_t)pid << 3) | 2); /* CPUCLOCK_SCHED of a process */
    if (clock_gettime(clock, &time)) return GONE;
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

/* Ask for short turns on the processor: who looks at memory would keep it for milliseconds before the server sees
 * that it waits (sched(7): the slice of SCHED_OTHER, since Linux 6.12; before that nothing changes). Another slice
 * than before makes the scheduler take a thread off and put it on again, and count what it has used. */
static void count_now(int32_t thread) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes};
    if (syscall(SYS_sched_getattr, thread, &attributes, sizeof attributes, 0)) return;
    attributes.size = sizeof attributes;
    attributes.runtime = attributes.runtime == SLICE_NS ? SLICE_NS + 1000 : SLICE_NS;
    syscall(SYS_sched_setattr, thread, &attributes, 0);
}

void live_take_short_turns(int32_t pid) { count_now(pid); }

static struct process *find(int32_t pid) {
    for (int i = 0; i < count; i++)
        if (known[i].pid == pid) return &known[i];
    return NULL;
}

/* Look after a process from now on. Returns 1 where it is new. */
int live_follow(int32_t pid) {
    if (find(pid) || count == MOST_PROCESSES) return 0;
    known[count++] = (struct process){.pid = pid, .told_ns = used_ns(pid)};
    live_take_short_turns(pid);
    return 1;
}

void live_forget_all(void) { count = 0; }

/* A process is told something: it has the processor's time before it to act on it. */
void live_mark(int32_t pid, int32_t may_spin) {
    struct process *process = find(pid), first;
    if (!process) return;
    process->told_ns = process->mark_ns = used_ns(pid);
    process->counted = 0;
    process->may_spin = may_spin;
    first = *process;
    memmove(known + 1, known, (size_t)((char *)process - (char *)known));
    known[0] = first;
}

/* A process counts what it does at an address of its memory. */
void live_read_acts(int32_t pid, uint64_t address) {
    struct process *process = find(pid);
    if (process) process->acts_at = address;
}

/* Whether a process has done anything since it was last asked. One whose memory may not be read has not. */
static int has_acted(struct process *process) {
    uint64_t acts = process->acts;
    struct iovec mine = {&acts, sizeof acts}, theirs = {(void *)(uintptr_t)process->acts_at, sizeof acts};
    if (!process->acts_at || process_vm_readv(process->pid, &mine, 1, &theirs, 1, 0) != sizeof acts) return 0;
    int has = acts != process->acts;
    process->acts = acts;
    return has;
}

static int read_text(const char *path, char *to, size_t room) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t got = read(file, to, room - 1);
    close(file);
    if (got < 0) return -1;
    to[got] = 0;
    return (int)got;
}

/* Children of a thread that are not known yet join. Returns how many. */
static int adopt(int32_t pid, int32_t thread) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, thread);
    if (read_text(path, text, sizeof text) <= 0) return 0;
    int fresh = 0;
    for (char *at = text, *end; *at; at = end) {
        long child = strtol(at, &end, 10);
        if (end == at) break;
        fresh += live_follow((int32_t)child);
    }
    return fresh;
}

/* System calls that a thread sleeps in and waits, whatever they are about; in others it may be at a disk. */
static int waits_in(long call) {
    switch (call) {
#ifdef __x86_64__
    case SYS_poll: case SYS_select: case SYS_epoll_wait: case SYS_pause: case SYS_accept:
#endif
    case SYS_ppoll: case SYS_pselect6: case SYS_epoll_pwait: case SYS_recvfrom: case SYS_recvmsg: case SYS_accept4:
    case SYS_connect: case SYS_futex: case SYS_wait4: case SYS_waitid: case SYS_nanosleep: case SYS_clock_nanosleep:
    case SYS_rt_sigtimedwait: case SYS_rt_sigsuspend: case SYS_sendto: case SYS_sendmsg:
        return 1;
    default:
        return 0;
    }
}

/* Whether a thread runs, or is about to: 1; 0: it waits; -1: it has ended. Quickly: one that was woken and that its
 * processor does not know of yet (TASK_WAKING: an idle one is told by an interrupt) passes for waiting. */
static int runs(int32_t pid, int32_t thread, int quickly) {
    char path[64], text[512];
    if (quickly) {
        snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", pid, thread);
        if (read_text(path, text, sizeof text) > 0) {
            if (!strncmp(text, "running", 7)) return 1;
            if (text[0] != '-' && waits_in(strtol(text, NULL, 10))) return 0;
        }
    }
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread);
    if (read_text(path, text, sizeof text) <= 0) return -1;
    char *name_end = strrchr(text, ')');
    if (!name_end || name_end[1] != ' ') return -1;
    char state = name_end[2];
    if (state == 'Z' || state == 'X' || state == 'x') return -1;
    return state == 'R' || state == 'D' || state == 'W';
}

/* Count the threads of a process that run, and have what these have used counted where `may_spin`. -1: it has ended;
 * more than there are: children came. */
static int look(int32_t pid, int quickly, int may_spin) {
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    if (stat(path, &about)) return -1;
    if (about.st_nlink == 3) { /* one thread */
        int state = runs(pid, pid, quickly);
        if (state > 0 && may_spin) count_now(pid);
        return state < 0 ? -1 : state + adopt(pid, pid);
    }
    DIR *threads = opendir(path);
    if (!threads) return -1;
    int running = 0, alive = 0, fresh = 0;
    for (struct dirent *each; (each = readdir(threads));) {
        int32_t thread = atoi(each->d_name);
        if (!thread) continue;
        fresh += adopt(pid, thread);
        int state = runs(pid, thread, quickly);
        alive += state >= 0;
        running += state > 0;
        if (state > 0 && may_spin) count_now(thread);
    }
    closedir(threads);
    return alive ? running + fresh : -1;
}

/* Whether a process, so many threads of which run, has used so much, and done nothing, that it looks at memory. */
static int spins(struct process *process, uint64_t spin_ns) {
    uint64_t used = used_ns(process->pid), most_ns = spin_ns * (uint64_t)process->running;
    if (!process->may_spin || used == GONE) return 0;
    uint64_t since_ns = used - process->mark_ns;
    process->mark_ns = used;
    if (has_acted(process) && used - process->told_ns < ACTING_NS) process->counted = 0;
    if (!process->counted) {
        process->counted = since_ns > 0;
        process->idly_ns = 0;
        return 0;
    }
    process->idly_ns += since_ns < most_ns / COUNTS ? since_ns : most_ns / COUNTS;
    return process->idly_ns >= most_ns;
}

/* Look at all processes. Returns 1 where every one waits; `spinning` is how many look at memory meanwhile. */
static int all_wait(uint64_t spin_ns, int32_t *spinning) {
    *spinning = 0;
    for (int i = 0; i < count;) {
        struct process *process = &known[i];
        process->before_ns = used_ns(process->pid);
        int running = process->before_ns == GONE ? -1 : look(process->pid, 1, process->may_spin);
        if (running < 0) {
            memmove(known + i, known + i + 1, (size_t)(--count - i) * sizeof *known);
            return 0; /* it may have woken somebody who was looked at before */
        }
        process->running = running;
        if (running && !spins(process, spin_ns)) return 0;
        *spinning += running > 0;
        i++;
    }
    for (int i = 0; i < count; i++) {
        struct process *process = &known[i];
        if (process->running) continue;
        /* one that has ended meanwhile has woken whom it woke: they are looked at anew */
        if (look(process->pid, 0, 0) || used_ns(process->pid) != process->before_ns) return 0;
    }
    return 1;
}

static int readable(int descriptor) {
    struct pollfd one = {.fd = descriptor, .events = POLLIN};
    return poll(&one, 1, 0) > 0;
}

static uint64_t wall_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

/* Wait until every process waits, for so long at most. Returns 0 then; 1: a descriptor is readable; 2: something
 * still runs. */
int live_await_quiet(int descriptor, uint64_t spin_ns, uint64_t most_ns, int32_t *spinning) {
    uint64_t until = wall_ns() + most_ns;
    for (int round = 0;; round++) {
        if (readable(descriptor)) return 1;
        if (all_wait(spin_ns, spinning)) return readable(descriptor) ? 1 : 0;
        if (wall_ns() > until) return 2;
        if (round < YIELDS) {
            sched_yield();
        } else {
            struct pollfd one = {.fd = descriptor, .events = POLLIN};
            struct timespec nap = {.tv_nsec = NAP_NS};
            ppoll(&one, 1, &nap, NULL);
        }
    }
}

/* How many processes are known, and which spin. */
int live_spinners(int32_t *to, int most) {
    int found = 0;
    for (int i = 0; i < count && found < most; i++)
        if (known[i].running) to[found++] = known[i].pid;
    return found;
}
