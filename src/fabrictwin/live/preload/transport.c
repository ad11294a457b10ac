/* Requests to the server and their replies. */
#include "live.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LOCKS 64
#define HIDDEN_FROM 512 /* hidden descriptors lie above what programs expect to get */

static pthread_mutex_t locks[LOCKS] = {[0 ... LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER};

/* A child of fork() has one thread: whoever held a lock in its parent is not there to let it go. */
static void unlock_all(void) {
    for (int i = 0; i < LOCKS; i++) pthread_mutex_init(&locks[i], NULL);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, unlock_all); }

int live_connect(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(live_socket) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, live_socket);
    int first = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (first < 0) return -1;
    int hidden = fcntl(first, F_DUPFD_CLOEXEC, HIDDEN_FROM);
    if (hidden < 0) hidden = first;
    else close(first);
    if (connect(hidden, (struct sockaddr *)&address, sizeof address)) {
        close(hidden);
        errno = ENODEV; /* the twin is gone */
        return -1;
    }
    return hidden;
}

static ssize_t send_whole(int socket, const struct live_request *request, const void *payload) {
    struct iovec parts[2] = {{(void *)request, sizeof *request}, {(void *)payload, request->length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = request->length ? 2 : 1};
    ssize_t sent;
    do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* Ask the server, and wait for what it says. Returns 0, or -1 with errno. */
int live_call(int socket, struct live_request *request, const void *payload, struct live_reply *reply, void *out,
              size_t room, int *descriptor) {
    if (descriptor) *descriptor = -1;
    if (request->length > LIVE_PAYLOAD) {
        errno = EINVAL;
        return -1;
    }
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec parts[2] = {{reply, sizeof *reply}, {out, room}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = room ? 2 : 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    pthread_mutex_t *lock = &locks[socket % LOCKS];
    pthread_mutex_lock(lock);
    ssize_t got = send_whole(socket, request, payload);
    if (got >= 0)
        do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        while (got < 0 && errno == EINTR);
    pthread_mutex_unlock(lock);
    if (got < (ssize_t)sizeof *reply) {
        errno = EIO; /* as a device that was unplugged */
        return -1;
    }
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    int came = -1;
    if (with && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS) memcpy(&came, CMSG_DATA(with), sizeof came);
    if (descriptor) *descriptor = came;
    else if (came >= 0) close(came);
    if (reply->length > (size_t)got - sizeof *reply) reply->length = (uint32_t)((size_t)got - sizeof *reply);
    if (reply->error) {
        errno = reply->error;
        return -1;
    }
    return 0;
}

/* Tell the server something that it does not answer. */
int live_tell(int socket, uint32_t kind, uint64_t argument) {
    struct live_request request = {.kind = kind, .argument = argument};
    if (send_whole(socket, &request, NULL) < 0) {
        errno = EIO;
        return -1;
    }
    return 0;
}

void live_close(int socket) { close(socket); }
