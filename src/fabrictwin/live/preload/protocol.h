/* What the preloaded library and the twin's server say to each other.
 *
 * Messages are datagrams on a SOCK_SEQPACKET unix socket, one socket for each opened device: a request header
 * and its payload go out; a reply header, its payload and perhaps one descriptor (SCM_RIGHTS) come back.
 * LIVE_DOORBELL and LIVE_DESCRIPTOR have no reply. Numbers are in the machine's own byte order.
 *
 * The descriptor that comes back for an opened device is a memory file. It begins with LIVE_CONTROL_BYTES for
 * the two sides' own use (struct live_control); the queues that rdma-core maps lie behind.
 */
#ifndef FABRICTWIN_LIVE_PROTOCOL_H
#define FABRICTWIN_LIVE_PROTOCOL_H

#include <stdint.h>

#define LIVE_PROTOCOL 4
#define LIVE_HANDLES 65536u     /* queue pairs of a context; handles wrap */
#define LIVE_CONTROL_BYTES (6 * LIVE_HANDLES)
#define LIVE_PAYLOAD 16384u     /* bytes of a request or a reply, at most */

enum live_kind {
    LIVE_OPEN = 1,       /* argument: LIVE_PROTOCOL; payload: "host/uverbsN" or "host/rdma_cm" */
    LIVE_COMMAND = 2,    /* payload: what was written to /dev/infiniband/uverbsN */
    LIVE_DOORBELL = 3,   /* argument: handle of a queue pair whose send queue has grown */
    LIVE_DESCRIPTOR = 4, /* argument: number that the last descriptor got in the client */
    LIVE_CM_COMMAND = 5, /* payload: what was written to /dev/infiniband/rdma_cm */
    LIVE_ADDRESS = 6,    /* payload: a GID; the reply is the MAC behind it */
    LIVE_TREE = 7,       /* payload: a host; the reply is the folder with the files that its programs see */
    LIVE_HOSTS = 8,      /* the reply is the names of the hosts, a line each */
    LIVE_JOIN = 9,       /* a process begins to live by the twin's clock. Argument: where in its memory it counts what
                            it does (uint64_t); the reply is struct live_joined and a descriptor, the memory file of
                            the clock (struct live_clock) */
    LIVE_WAIT = 10,      /* argument: an instant in ps; payload: struct live_wait. The reply comes when it is over */
    LIVE_WITHDRAW = 11,  /* argument: number of a wait. It is over, and answered if it was not; no other reply */
    LIVE_TIMER = 12,     /* argument: an instant at which the process gets SIGALRM, or 0; payload: the interval */
    LIVE_IOCTL = 13,     /* payload: the header and attributes of ioctl(RDMA_VERBS_IOCTL). The reply is pieces: the
                            place of an attribute among them (16 bits, 16 unused), a length, and what goes there */
};

enum live_wait_kind {
    LIVE_SLEEP = 1, /* until the instant */
    LIVE_NEWS = 2,  /* for anything that a program finds by looking: completions, memory that was written */
    LIVE_LOOK = 3,  /* for the clock to move */
    LIVE_LOCK = 4,  /* as a sleep; the client looks for the reply now and then, and withdraws when it has seen it */
};

struct live_wait {
    uint32_t kind;
    uint32_t number; /* comes back in the reply's `number` */
    uint64_t news;   /* LIVE_NEWS: the process's count of news before it looked */
};

struct live_joined {
    uint32_t slot; /* of the process among `news` */
};

#define LIVE_SLOTS 4096u

struct live_clock {
    uint64_t now_ps;
    uint64_t epoch_ns; /* CLOCK_REALTIME at instant 0 */
    uint64_t boot_ns;  /* CLOCK_MONOTONIC at instant 0 */
    uint64_t tick_ps;  /* of the time stamp counter */
    uint64_t reserved[60];
    uint64_t news[LIVE_SLOTS];
};

struct live_request {
    uint32_t kind;
    uint32_t length;     /* of the payload */
    uint64_t argument;
};

struct live_reply {
    int32_t error;         /* an errno, or 0 */
    uint32_t length;       /* of the payload */
    int32_t descriptor_at; /* where in the payload the number of the descriptor belongs; -1: nowhere */
    uint32_t number;       /* of the wait that is over; otherwise 0 */
};

struct live_control {
    uint8_t state[LIVE_HANDLES]; /* ibv_qp_state by handle, written by the server */
    uint8_t rung[LIVE_HANDLES];  /* a doorbell is under way: set by the client, cleared by the server */
    uint32_t rings[LIVE_HANDLES]; /* doorbells so far, told or not: one for each list of requests */
};

#endif
