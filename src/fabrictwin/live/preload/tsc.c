/* The time stamp counter: rdtsc and rdtscp trap, and are answered from the twin's clock (prctl(2), PR_SET_TSC).
 *
 * The flag stays over exec, where the loader reads the counter before this library is there: it is taken back
 * before. A handler that the program installs for SIGSEGV stands behind ours, and nobody blocks the signal.
 */
#include "live.h"

#if defined(__x86_64__)
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define VDSO_BYTES 16384u
#define KERNEL_SENT 0x80 /* SI_KERNEL */

DECLARE_REAL(sigaction);
DECLARE_REAL(pthread_sigmask);
DECLARE_REAL(sigprocmask);

static struct sigaction theirs; /* what the program wants of SIGSEGV */
static uintptr_t vdso;
static int trapping;

static void set_trap(int how) { syscall(SYS_prctl, PR_SET_TSC, how, 0, 0, 0); }

static uint64_t machines_counter(void) {
    set_trap(PR_TSC_ENABLE);
    uint64_t value = __builtin_ia32_rdtsc();
    set_trap(PR_TSC_SIGSEGV);
    return value;
}

static void pass_on(int number, siginfo_t *about, void *where) {
    if (theirs.sa_flags & SA_SIGINFO) {
        theirs.sa_sigaction(number, about, where);
    } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
        theirs.sa_handler(number);
    } else {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        REAL(sigaction)(SIGSEGV, &plain, NULL); /* the instruction is tried again, and ends the program */
    }
}

static void trapped(int number, siginfo_t *about, void *where) {
    ucontext_t *at = where;
    greg_t *registers = at->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    if (about->si_code != KERNEL_SENT) {
        pass_on(number, about, where);
        return;
    }
    int length = code[0] == 0x0f && code[1] == 0x31 ? 2 : code[0] == 0x0f && code[1] == 0x01 && code[2] == 0xf9 ? 3 : 0;
    if (!length) {
        pass_on(number, about, where);
        return;
    }
    int kept = errno;
    uint64_t value;
    if (vdso && (uintptr_t)code - vdso < VDSO_BYTES) /* libc's own looks at the machine's clock */
        value = machines_counter();
    else
        value = (live_look() + live_clock->boot_ns * 1000) / live_clock->tick_ps;
    registers[REG_RAX] = (greg_t)(value & 0xffffffffu);
    registers[REG_RDX] = (greg_t)(value >> 32);
    if (length == 3) registers[REG_RCX] = 0; /* the processor's number */
    registers[REG_RIP] += length;
    errno = kept;
}

void live_trap_counter(void) {
    if (!trapping) {
        struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | SA_RESTART};
        ours.sa_sigaction = trapped;
        vdso = getauxval(AT_SYSINFO_EHDR);
        REAL(sigaction)(SIGSEGV, &ours, &theirs);
        sigset_t fault;
        sigemptyset(&fault);
        sigaddset(&fault, SIGSEGV);
        REAL(pthread_sigmask)(SIG_UNBLOCK, &fault, NULL);
        trapping = 1;
    }
    set_trap(PR_TSC_SIGSEGV);
}

int sigaction(int number, const struct sigaction *to, struct sigaction *before) {
    if (number != SIGSEGV || !trapping) return REAL(sigaction)(number, to, before);
    struct sigaction had = theirs;
    if (to) theirs = *to;
    if (before) *before = had;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction to = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    return sigaction(number, &to, &before) ? SIG_ERR : before.sa_handler;
}

sighandler_t __sysv_signal(int number, sighandler_t handler) {
    struct sigaction to = {.sa_handler = handler, .sa_flags = (int)SA_RESETHAND | SA_NODEFER}, before;
    return sigaction(number, &to, &before) ? SIG_ERR : before.sa_handler;
}

#define MASKS(name)                                                                                                    \
    int name(int how, const sigset_t *set, sigset_t *before) {                                                         \
        sigset_t without;                                                                                              \
        if (trapping && set && how != SIG_UNBLOCK) {                                                                   \
            without = *set;                                                                                            \
            sigdelset(&without, SIGSEGV);                                                                              \
            set = &without;                                                                                            \
        }                                                                                                              \
        return REAL(name)(how, set, before);                                                                           \
    }
MASKS(pthread_sigmask)
MASKS(sigprocmask)

/* What becomes another program, or starts one, does so with the counter as the machine has it. */
#define STARTS(type, name, parameters, ...)                                                                            \
    DECLARE_REAL(name);                                                                                                \
    type name parameters {                                                                                             \
        int trap = trapping;                                                                                           \
        if (trap) set_trap(PR_TSC_ENABLE);                                                                             \
        type result = REAL(name)(__VA_ARGS__);                                                                         \
        int kept = errno;                                                                                              \
        if (trap) set_trap(PR_TSC_SIGSEGV);                                                                            \
        errno = kept;                                                                                                  \
        return result;                                                                                                 \
    }
STARTS(int, execve, (const char *path, char *const arguments[], char *const variables[]), path, arguments, variables)
STARTS(int, execv, (const char *path, char *const arguments[]), path, arguments)
STARTS(int, execvp, (const char *file, char *const arguments[]), file, arguments)
STARTS(int, execvpe, (const char *file, char *const arguments[], char *const variables[]), file, arguments, variables)
STARTS(int, fexecve, (int file, char *const arguments[], char *const variables[]), file, arguments, variables)
STARTS(int, posix_spawn,
       (pid_t *restrict process, const char *restrict path, const posix_spawn_file_actions_t *actions,
        const posix_spawnattr_t *restrict attributes, char *const *restrict arguments, char *const *restrict variables),
       process, path, actions, attributes, arguments, variables)
STARTS(int, posix_spawnp,
       (pid_t *restrict process, const char *restrict file, const posix_spawn_file_actions_t *actions,
        const posix_spawnattr_t *restrict attributes, char *const *restrict arguments, char *const *restrict variables),
       process, file, actions, attributes, arguments, variables)
STARTS(int, system, (const char *command), command)
STARTS(FILE *, popen, (const char *command, const char *mode), command, mode)

#define MOST_ARGUMENTS 4096

static int collect(va_list rest, const char *first, char **to) {
    int count = 0;
    for (const char *next = first; next; next = va_arg(rest, const char *)) {
        if (count >= MOST_ARGUMENTS - 1) {
            errno = E2BIG;
            return -1;
        }
        to[count++] = (char *)next;
    }
    to[count] = NULL;
    return 0;
}

#define LISTS(name, with)                                                                                              \
    int name(const char *path, const char *first, ...) {                                                               \
        char *arguments[MOST_ARGUMENTS];                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, first);                                                                                         \
        int code = collect(rest, first, arguments);                                                                    \
        va_end(rest);                                                                                                  \
        return code ? code : with(path, arguments);                                                                    \
    }
LISTS(execl, execv)
LISTS(execlp, execvp)

int execle(const char *path, const char *first, ...) {
    char *arguments[MOST_ARGUMENTS];
    va_list rest;
    va_start(rest, first);
    int code = collect(rest, first, arguments);
    char *const *variables = va_arg(rest, char *const *);
    va_end(rest);
    return code ? code : execve(path, arguments, variables);
}

#else
/* aarch64 has no such trap that a process may ask for: `exec` refuses the twin's clock there. */
void live_trap_counter(void) {}
#endif
