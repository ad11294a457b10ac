/* What happens before the program's main(): reading how it was started. */
#include "live.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

const char *live_root, *live_socket, *live_host;
int live_own_network;

__attribute__((constructor)) static void start(void) {
    live_socket = getenv("FABRICTWIN_LIVE_SOCKET");
    live_host = getenv("FABRICTWIN_LIVE_HOST");
    live_root = live_socket && live_host ? getenv("FABRICTWIN_LIVE_ROOT") : NULL;
    live_own_network = getenv("FABRICTWIN_LIVE_NETWORK") != NULL;
    /* Yama's scope 1 lets only ancestors read a process's memory unless it says who may (PR_SET_PTRACER). */
    if (live_root) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    const char *clock = getenv("FABRICTWIN_LIVE_CLOCK");
    if (live_root && clock && !strcmp(clock, "virtual")) live_join();
}
