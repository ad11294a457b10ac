/* The server's hands: rings in shared memory, and bytes from one process to another.
 *
 * A ring is struct rxe_queue_buf of the kernel's uapi rdma/rdma_user_rxe.h: producer and consumer index in cache
 * lines of their own, then the elements. The other side can write anything into it at any time, so elements are
 * copied out once, indices are masked, and sizes are those that the server gave it.
 *
 * An address of a client is tagged with the client's place in the table of processes, so that one integer says
 * whose memory it means; place 0 is the server's own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <rdma/rdma_user_rxe.h>

#define PLACE_SHIFT 47 /* bits of a user's address on x86-64; aarch64 programs get no more unless they ask */
#define PLACES 65536
#define BOUNCE_BYTES (256 * 1024)

static int32_t process[PLACES]; /* process ids, by place; 0: nobody */
static char bounce[BOUNCE_BYTES];

void live_set_process(uint32_t place, int32_t pid) { process[place % PLACES] = pid; }

static uint64_t bare(uint64_t address) { return address & ((UINT64_C(1) << PLACE_SHIFT) - 1); }

/* Bytes between a client's memory and the server's own. Returns 0 or an errno. */
static int transfer(uint64_t theirs, char *mine, uint64_t length, int to_them) {
    int32_t pid = process[(theirs >> PLACE_SHIFT) % PLACES];
    if (!pid) return ESRCH;
    while (length) {
        struct iovec local = {mine, length}, remote = {(void *)(uintptr_t)bare(theirs), length};
        ssize_t done = to_them ? process_vm_writev(pid, &local, 1, &remote, 1, 0)
                               : process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (done <= 0) return done < 0 ? errno : EFAULT;
        mine += done;
        theirs += (uint64_t)done;
        length -= (uint64_t)done;
    }
    return 0;
}

int live_read(uint64_t from, char *to, uint64_t length) {
    if (from >> PLACE_SHIFT) return transfer(from, to, length, 0);
    memcpy(to, (const void *)(uintptr_t)from, length);
    return 0;
}

int live_write(uint64_t to, const char *from, uint64_t length) {
    if (to >> PLACE_SHIFT) return transfer(to, (char *)(uintptr_t)from, length, 1);
    memcpy((void *)(uintptr_t)to, from, length);
    return 0;
}

/* Copy from one address to another, whosesoever they are. Returns 0 or an errno; before an error some may be copied. */
int live_copy(uint64_t to, uint64_t from, uint64_t length) {
    while (length) {
        uint64_t part = length < BOUNCE_BYTES ? length : BOUNCE_BYTES;
        int code = live_read(from, bounce, part);
        if (!code) code = live_write(to, bounce, part);
        if (code) return code;
        from += part;
        to += part;
        length -= part;
    }
    return 0;
}

/* Map a part of a memory file. Returns its address, 0 where that failed. */
void *live_map(int descriptor, uint64_t offset, uint64_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)offset);
    return at == MAP_FAILED ? NULL : at;
}

void live_unmap(void *at, uint64_t size) { munmap(at, size); }

/* Lay out an empty ring of 2^log2_slots elements of 2^log2_element bytes. */
void live_ring(struct rxe_queue_buf *ring, uint32_t log2_element, uint32_t log2_slots) {
    ring->log2_elem_size = log2_element;
    ring->index_mask = (1u << log2_slots) - 1;
    ring->producer_index = ring->consumer_index = 0;
}

/* Copy out what the client has put into a ring since `seen`, at most `most` elements. Returns how many. */
uint32_t live_take(struct rxe_queue_buf *ring, uint32_t log2_element, uint32_t mask, uint32_t seen, char *out,
                   uint32_t most) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* a doorbell that was cleared before is cleared for the client too */
    uint32_t fresh = (__atomic_load_n(&ring->producer_index, __ATOMIC_ACQUIRE) - seen) & mask;
    uint64_t element = UINT64_C(1) << log2_element;
    if (fresh > most) fresh = most;
    for (uint32_t i = 0; i < fresh; i++)
        memcpy(out + i * element, ring->data + ((seen + i) & mask) * element, element);
    return fresh;
}

/* Say that a ring's elements before `index` are free again. */
void live_free(struct rxe_queue_buf *ring, uint32_t mask, uint32_t index) {
    __atomic_store_n(&ring->consumer_index, index & mask, __ATOMIC_RELEASE);
}

/* Withdraw all that the client has put into a ring. Returns the index where it goes on. */
uint32_t live_clear(struct rxe_queue_buf *ring, uint32_t mask) {
    uint32_t index = __atomic_load_n(&ring->producer_index, __ATOMIC_ACQUIRE) & mask;
    __atomic_store_n(&ring->consumer_index, index, __ATOMIC_RELEASE);
    return index;
}

/* Put a completion of `size` bytes into a ring at `index`. Returns 0 where the ring is full. */
int live_complete(struct rxe_queue_buf *ring, uint32_t log2_element, uint32_t mask, uint32_t index,
                  const char *completion, uint32_t size) {
    uint32_t next = (index + 1) & mask;
    if (next == (__atomic_load_n(&ring->consumer_index, __ATOMIC_ACQUIRE) & mask)) return 0;
    memcpy(ring->data + ((uint64_t)(index & mask) << log2_element), completion, size);
    __atomic_store_n(&ring->producer_index, next, __ATOMIC_RELEASE);
    return 1;
}

/* How many elements the client has yet to take out of a ring that the server fills. */
uint32_t live_held(struct rxe_queue_buf *ring, uint32_t mask, uint32_t index) {
    return (index - __atomic_load_n(&ring->consumer_index, __ATOMIC_ACQUIRE)) & mask;
}
