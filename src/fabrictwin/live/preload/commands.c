/* What programs write to the devices: commands of the kernel's uverbs and rdma_cm interfaces (uapi
 * rdma/ib_user_verbs.h, rdma/rdma_user_cm.h). They go to the server as they are; what it answers is put where the
 * command says. */
#include "live.h"

#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/rdma_user_cm.h>
#include <string.h>
#include <unistd.h>

#define STATE_RTS 3

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

/* Ring a doorbell: the server has to look at the send queue. Nothing is told while it has yet to look. */
static ssize_t ring(struct device *device, const struct ib_uverbs_post_send *post, size_t length) {
    struct live_control *control = device->control;
    uint32_t handle = post->qp_handle;
    if (control) {
        if (__atomic_load_n(&control->state[handle % LIVE_HANDLES], __ATOMIC_ACQUIRE) < STATE_RTS) {
            errno = EINVAL;
            return -1;
        }
        __atomic_add_fetch(&control->rings[handle % LIVE_HANDLES], 1, __ATOMIC_RELEASE);
        if (__atomic_exchange_n(&control->rung[handle % LIVE_HANDLES], 1, __ATOMIC_SEQ_CST)) return (ssize_t)length;
    }
    return live_tell(device->socket, LIVE_DOORBELL, handle) ? -1 : (ssize_t)length;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

ssize_t live_verbs_command(int descriptor, struct device *device, const void *command, size_t length) {
    (void)descriptor;
    struct ib_uverbs_cmd_hdr header;
    if (length < sizeof header) {
        errno = EINVAL;
        return -1;
    }
    memcpy(&header, command, sizeof header);
    uint32_t number = header.command & IB_USER_VERBS_CMD_COMMAND_MASK;
    int extended = (header.command & IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0;
    const struct ib_uverbs_post_send *post = (const void *)((const char *)command + sizeof header);
    if (number == IB_USER_VERBS_CMD_POST_SEND && !extended && length >= sizeof header + sizeof *post && !post->wr_count)
        return ring(device, post, length);

    size_t room = 4u * header.out_words;
    if (extended) {
        struct ib_uverbs_ex_cmd_hdr more;
        if (length < sizeof header + sizeof more) {
            errno = EINVAL;
            return -1;
        }
        memcpy(&more, (const char *)command + sizeof header, sizeof more);
        room = 8u * ((size_t)header.out_words + more.provider_out_words);
    }
    char out[LIVE_PAYLOAD];
    int came;
    struct live_request request = {.kind = LIVE_COMMAND, .length = (uint32_t)length};
    struct live_reply reply;
    if (live_call(device->socket, &request, command, &reply, out, sizeof out, &came)) return -1;
    if (came >= 0) {
        if (reply.descriptor_at >= 0 && (size_t)reply.descriptor_at + sizeof came <= sizeof out)
            memcpy(out + reply.descriptor_at, &came, sizeof came);
        live_tell(device->socket, LIVE_DESCRIPTOR, (uint64_t)came);
    }
    if (reply.length && room && length >= sizeof header + sizeof(uint64_t)) {
        uint64_t response;
        memcpy(&response, (const char *)command + sizeof header, sizeof response);
        memcpy(pointer(response), out, smaller(reply.length, room));
    }
    return (ssize_t)length;
}

/* Methods of RDMA_VERBS_IOCTL. What has a written form as well is refused at once, as a kernel does that does not know
 * the method: libibverbs writes it then (libibverbs/cmd_fallback.c). */
int live_verbs_ioctl(struct device *device, struct ib_uverbs_ioctl_hdr *call) {
    size_t length = call->length;
    if (length != sizeof *call + call->num_attrs * sizeof call->attrs[0]) {
        errno = EINVAL;
        return -1;
    }
    if (call->object_id != UVERBS_OBJECT_DEVICE ||
        (call->method_id != UVERBS_METHOD_QUERY_GID_TABLE && call->method_id != UVERBS_METHOD_QUERY_GID_ENTRY)) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    struct piece {
        uint16_t place, unused;
        uint32_t length;
    } piece;
    char out[LIVE_PAYLOAD];
    struct live_request request = {.kind = LIVE_IOCTL, .length = (uint32_t)length};
    struct live_reply reply;
    if (live_call(device->socket, &request, call, &reply, out, sizeof out, NULL)) return -1;
    for (size_t at = 0; at + sizeof piece <= reply.length; at += sizeof piece + piece.length) {
        memcpy(&piece, out + at, sizeof piece);
        if (piece.place >= call->num_attrs || piece.length > reply.length - at - sizeof piece) break;
        struct ib_uverbs_attr *attribute = &call->attrs[piece.place];
        memcpy(pointer(attribute->data), out + at + sizeof piece, smaller(piece.length, attribute->len));
        attribute->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
    }
    return 0;
}

/* The largest of what a command of the connection manager points to beside its own bytes. */
#define OPTION_BYTES 1024u

ssize_t live_cm_command(int descriptor, struct device *device, const void *command, size_t length) {
    struct rdma_ucm_cmd_hdr header;
    char in[LIVE_PAYLOAD], out[LIVE_PAYLOAD];
    if (length < sizeof header || length > LIVE_PAYLOAD - OPTION_BYTES) {
        errno = EINVAL;
        return -1;
    }
    memcpy(&header, command, sizeof header);
    memcpy(in, command, length);
    size_t total = length;
    if (header.cmd == RDMA_USER_CM_CMD_SET_OPTION) {
        struct rdma_ucm_set_option option;
        if (length < sizeof header + sizeof option) {
            errno = EINVAL;
            return -1;
        }
        memcpy(&option, (const char *)command + sizeof header, sizeof option);
        if (option.optlen > OPTION_BYTES) {
            errno = EINVAL;
            return -1;
        }
        memcpy(in + length, pointer(option.optval), option.optlen);
        total += option.optlen;
    }
    if (header.cmd == RDMA_USER_CM_CMD_GET_EVENT) {
        /* a byte in the pipe for each event; a blocking descriptor waits for one here, as in the kernel */
        char one;
        ssize_t got = read(descriptor, &one, 1);
        if (got < 0) return -1;
        if (got == 0) {
            /* another thread has closed the device: whoever waits in the kernel then waits for ever */
            while (live_device(descriptor) != device) pause();
            errno = EIO; /* the twin is gone */
            return -1;
        }
    }
    struct live_request request = {.kind = LIVE_CM_COMMAND, .length = (uint32_t)total};
    struct live_reply reply;
    if (live_call(device->socket, &request, in, &reply, out, sizeof out, NULL)) return -1;
    /* the response pointer comes first, but for CREATE_ID, where the program's own number does */
    size_t at = sizeof header + (header.cmd == RDMA_USER_CM_CMD_CREATE_ID ? sizeof(uint64_t) : 0);
    if (header.out && reply.length && length >= at + sizeof(uint64_t)) {
        uint64_t response;
        memcpy(&response, (const char *)command + at, sizeof response);
        memcpy(pointer(response), out, smaller(reply.length, header.out));
    }
    return (ssize_t)length;
}
