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

#define LIVE_PROTOCOL 1
#define LIVE_HANDLES 65536u     /* queue pairs of a context; handles wrap */
#define LIVE_CONTROL_BYTES (2 * LIVE_HANDLES)
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
    uint32_t reserved;
};

struct live_control {
    uint8_t state[LIVE_HANDLES]; /* ibv_qp_state by handle, written by the server */
    uint8_t rung[LIVE_HANDLES];  /* a doorbell is under way: set by the client, cleared by the server */
};

#endif
