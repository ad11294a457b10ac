/* Network interfaces of the twin's adapters, as programs look for them by route netlink and by libc.
 *
 * The twin's folder has the messages that a kernel would send of them (netlink/links, netlink/addresses). Answers of
 * the machine's kernel get them added, or are replaced where it does not know the interface. A program in a network
 * namespace of the twin's has the interface itself: there answers get the link-layer address alone, which a TUN has
 * none of.
 */
#include "live.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RECORDS_BYTES 8192

/* What a program has asked by a socket of route netlink, while the answer is under way. */
struct question {
    uint16_t type; /* RTM_GETLINK, RTM_GETADDR; 0: nothing of concern */
    uint8_t route; /* the descriptor is such a socket */
    uint8_t dump, family;
    uint32_t sequence, port;
    int32_t index; /* 0: any */
    char name[IFNAMSIZ];
};

static struct question questions[LIVE_DESCRIPTORS]; /* by descriptor; pages that nobody touches cost nothing */

/* Read a file of messages; returns how many bytes there are. */
static size_t records(const char *name, char *to) {
    char path[PATH_BYTES];
    if (!live_root || snprintf(path, sizeof path, "%s/netlink/%s", live_root, name) >= PATH_BYTES) return 0;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = syscall(SYS_read, file, to, RECORDS_BYTES);
    syscall(SYS_close, file);
    return got < 0 ? 0 : (size_t)got;
}

static struct rtattr *find(struct nlmsghdr *message, size_t body, unsigned short type) {
    struct rtattr *each = (void *)((char *)message + NLMSG_SPACE(body));
    int left = (int)message->nlmsg_len - (int)NLMSG_SPACE(body);
    for (; RTA_OK(each, left); each = RTA_NEXT(each, left))
        if ((each->rta_type & NLA_TYPE_MASK) == type) return each;
    return NULL;
}

static struct rtattr *of_link(struct nlmsghdr *message, unsigned short type) {
    return find(message, sizeof(struct ifinfomsg), type);
}

/* Put the name of a link where there is room for one. */
static void take_name(char *to, struct nlmsghdr *link) {
    struct rtattr *name = of_link(link, IFLA_IFNAME);
    memset(to, 0, IFNAMSIZ);
    if (name) memcpy(to, RTA_DATA(name), RTA_PAYLOAD(name) < IFNAMSIZ ? RTA_PAYLOAD(name) : IFNAMSIZ - 1);
}

static int index_of(struct nlmsghdr *message) { /* ifinfomsg and ifaddrmsg have it at the same place */
    return ((struct ifinfomsg *)NLMSG_DATA(message))->ifi_index;
}

/* The message of a link with a name or a number; NULL: the twin has none. */
static struct nlmsghdr *link_called(char *links, size_t length, const char *name, int index) {
    for (size_t at = 0; at + NLMSG_HDRLEN <= length;) {
        struct nlmsghdr *each = (void *)(links + at);
        struct rtattr *called = of_link(each, IFLA_IFNAME);
        if (name ? called && !strncmp(RTA_DATA(called), name, IFNAMSIZ) : index_of(each) == index) return each;
        at += NLMSG_ALIGN(each->nlmsg_len);
    }
    return NULL;
}

/* ---------------------------------------------------------------- route netlink */

void live_note_route_socket(int descriptor) {
    if (descriptor < 0 || descriptor >= LIVE_DESCRIPTORS) return;
    memset(&questions[descriptor], 0, sizeof questions[descriptor]);
    questions[descriptor].route = 1;
}

void live_forget_route_socket(int descriptor) {
    if (descriptor >= 0 && descriptor < LIVE_DESCRIPTORS && questions[descriptor].route)
        questions[descriptor].route = 0;
}

static struct question *question_at(int descriptor) {
    if (descriptor < 0 || descriptor >= LIVE_DESCRIPTORS || !questions[descriptor].route) return NULL;
    return &questions[descriptor];
}

void live_note_question(int descriptor, const void *data, size_t length) {
    struct question *question = question_at(descriptor);
    struct nlmsghdr *asked = (void *)data;
    if (!question || length < NLMSG_HDRLEN + 1 || asked->nlmsg_len > length) return;
    question->type = 0;
    if (asked->nlmsg_type != RTM_GETLINK && asked->nlmsg_type != RTM_GETADDR) return;
    question->dump = (asked->nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
    question->sequence = asked->nlmsg_seq;
    question->family = *(uint8_t *)NLMSG_DATA(asked);
    question->index = asked->nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifaddrmsg)) ? index_of(asked) : 0;
    memset(question->name, 0, sizeof question->name);
    if (asked->nlmsg_type == RTM_GETLINK && asked->nlmsg_len > NLMSG_LENGTH(sizeof(struct ifinfomsg))) {
        struct rtattr *name = of_link(asked, IFLA_IFNAME);
        if (!name) name = of_link(asked, IFLA_ALT_IFNAME);
        if (name) strncpy(question->name, RTA_DATA(name), IFNAMSIZ - 1);
    }
    struct sockaddr_nl own;
    socklen_t room = sizeof own;
    question->port = getsockname(descriptor, (struct sockaddr *)&own, &room) ? 0 : own.nl_pid;
    question->type = asked->nlmsg_type;
}

static int asks_for(const struct question *question, struct nlmsghdr *record) {
    int link = question->type == RTM_GETLINK;
    if (question->family && question->family != (link ? AF_PACKET : AF_INET)) return 0;
    if (question->index && question->index != index_of(record)) return 0;
    if (!question->name[0]) return 1;
    struct rtattr *called = link ? of_link(record, IFLA_IFNAME) : NULL;
    return called && !strncmp(RTA_DATA(called), question->name, IFNAMSIZ);
}

/* Messages of the twin's that answer a question. */
static size_t answers(const struct question *question, char *to) {
    char known[RECORDS_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    size_t length = records(question->type == RTM_GETLINK ? "links" : "addresses", known), put = 0;
    if (!question->dump && !question->index && !question->name[0]) return 0;
    for (size_t at = 0; at + NLMSG_HDRLEN <= length;) {
        struct nlmsghdr *each = (void *)(known + at);
        at += NLMSG_ALIGN(each->nlmsg_len);
        if (!asks_for(question, each)) continue;
        each->nlmsg_seq = question->sequence;
        each->nlmsg_pid = question->port;
        each->nlmsg_flags = question->dump ? NLM_F_MULTI : 0;
        memcpy(to + put, each, NLMSG_ALIGN(each->nlmsg_len));
        put += NLMSG_ALIGN(each->nlmsg_len);
    }
    return put;
}

/* Give a link of the namespace's own its link-layer address. Returns by how much its message has grown. */
static size_t add_address(struct nlmsghdr *message, size_t behind, size_t spare) {
    char known[RECORDS_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    struct rtattr *called = of_link(message, IFLA_IFNAME);
    if (!called || of_link(message, IFLA_ADDRESS)) return 0;
    struct nlmsghdr *ours = link_called(known, records("links", known), RTA_DATA(called), 0);
    if (!ours) return 0;
    size_t grown = 0;
    static const unsigned short wanted[] = {IFLA_ADDRESS, IFLA_BROADCAST};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct rtattr *part = of_link(ours, wanted[i]);
        size_t size = part ? RTA_ALIGN(part->rta_len) : 0;
        if (!part || grown + size > spare) return grown;
        char *end = (char *)message + NLMSG_ALIGN(message->nlmsg_len);
        memmove(end + size, end, behind);
        memcpy(end, part, size);
        message->nlmsg_len = (uint32_t)(end + size - (char *)message);
        grown += size;
    }
    return grown;
}

size_t live_add_interfaces(int descriptor, char *data, size_t got, size_t room) {
    struct question *question = question_at(descriptor);
    if (!question || !question->type || got > room) return got;
    char ours[RECORDS_BYTES];
    for (size_t at = 0; at + NLMSG_HDRLEN <= got;) {
        struct nlmsghdr *each = (void *)(data + at);
        size_t length = NLMSG_ALIGN(each->nlmsg_len);
        if (each->nlmsg_len < NLMSG_HDRLEN || at + each->nlmsg_len > got) return got;
        if (at + length > got) length = got - at;
        int failed = each->nlmsg_len >= NLMSG_LENGTH(sizeof(int)) && *(int *)NLMSG_DATA(each) < 0;
        if (each->nlmsg_seq == question->sequence && live_own_network) {
            if (each->nlmsg_type == RTM_NEWLINK) {
                size_t grown = add_address(each, got - at - length, room - got);
                got += grown, length += grown;
            }
        } else if (each->nlmsg_seq == question->sequence && each->nlmsg_type == NLMSG_DONE) {
            size_t more = answers(question, ours);
            question->type = 0;
            if (!more || got + more > room) return got;
            memmove(data + at + more, data + at, got - at);
            memcpy(data + at, ours, more);
            if (failed) *(int *)NLMSG_DATA((struct nlmsghdr *)(data + at + more)) = 0; /* it did not know ours */
            return got + more;
        } else if (each->nlmsg_seq == question->sequence && each->nlmsg_type == NLMSG_ERROR && failed) {
            size_t more = answers(question, ours), end = question->dump ? NLMSG_SPACE(sizeof(int)) : 0;
            question->type = 0;
            if (!more || at + more + end > room) return got;
            memcpy(data + at, ours, more);
            if (end) {
                struct nlmsghdr done = {NLMSG_LENGTH(sizeof(int)), NLMSG_DONE, NLM_F_MULTI, question->sequence,
                                        question->port};
                memset(data + at + more, 0, end);
                memcpy(data + at + more, &done, sizeof done);
            }
            return at + more + end;
        }
        at += length;
    }
    return got;
}

/* ---------------------------------------------------------------- libc's look-ups */

DECLARE_REAL(if_nametoindex);
unsigned int if_nametoindex(const char *name) {
    unsigned int known = REAL(if_nametoindex)(name);
    if (known || !live_root || live_own_network) return known;
    char links[RECORDS_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    struct nlmsghdr *ours = link_called(links, records("links", links), name, 0);
    return ours ? (unsigned int)index_of(ours) : 0;
}

DECLARE_REAL(if_indextoname);
char *if_indextoname(unsigned int index, char to[IF_NAMESIZE]) {
    char *known = REAL(if_indextoname)(index, to);
    if (known || !live_root || live_own_network) return known;
    char links[RECORDS_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    struct nlmsghdr *ours = link_called(links, records("links", links), NULL, (int)index);
    if (!ours) return NULL;
    take_name(to, ours);
    return to;
}

/* The IPv4 address of an interface and its mask; 0 where it has none. */
static uint32_t address_of(int index, uint32_t *mask) {
    char known[RECORDS_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    size_t length = records("addresses", known);
    for (size_t at = 0; at + NLMSG_HDRLEN <= length;) {
        struct nlmsghdr *each = (void *)(known + at);
        struct ifaddrmsg *body = NLMSG_DATA(each);
        struct rtattr *local = find(each, sizeof *body, IFA_LOCAL);
        if ((int)body->ifa_index == index && local) {
            *mask = htonl(~(uint32_t)0 << (32 - body->ifa_prefixlen));
            return *(uint32_t *)RTA_DATA(local);
        }
        at += NLMSG_ALIGN(each->nlmsg_len);
    }
    return 0;
}

static void put_inet(struct sockaddr *to, uint32_t address) {
    struct sockaddr_in made = {.sin_family = AF_INET, .sin_addr.s_addr = address};
    memcpy(to, &made, sizeof made);
}

int live_interface_ioctl(unsigned long request, struct ifreq *about) {
    char links[RECORDS_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    if (live_own_network || !live_root) return -1;
    size_t length = records("links", links);
    struct nlmsghdr *ours = request == SIOCGIFNAME ? link_called(links, length, NULL, about->ifr_ifindex)
                                                   : link_called(links, length, about->ifr_name, 0);
    if (!ours) return -1;
    struct ifinfomsg *body = NLMSG_DATA(ours);
    struct rtattr *hardware = of_link(ours, IFLA_ADDRESS);
    uint32_t mask = 0, ip = address_of(body->ifi_index, &mask);
    switch (request) {
    case SIOCGIFNAME: take_name(about->ifr_name, ours); return 0;
    case SIOCGIFINDEX: about->ifr_ifindex = body->ifi_index; return 0;
    case SIOCGIFFLAGS: about->ifr_flags = (short)body->ifi_flags; return 0;
    case SIOCGIFMTU: about->ifr_mtu = *(int *)RTA_DATA(of_link(ours, IFLA_MTU)); return 0;
    case SIOCGIFADDR: put_inet(&about->ifr_addr, ip); return 0;
    case SIOCGIFNETMASK: put_inet(&about->ifr_netmask, mask); return 0;
    case SIOCGIFBRDADDR: put_inet(&about->ifr_broadaddr, ip | ~mask); return 0;
    case SIOCGIFHWADDR: /* 14 bytes are what fits, also of InfiniBand's 20 */
        about->ifr_hwaddr.sa_family = body->ifi_type;
        memcpy(about->ifr_hwaddr.sa_data, RTA_DATA(hardware),
               RTA_PAYLOAD(hardware) < sizeof about->ifr_hwaddr.sa_data ? RTA_PAYLOAD(hardware)
                                                                        : sizeof about->ifr_hwaddr.sa_data);
        return 0;
    default: return -1;
    }
}

/* ---------------------------------------------------------------- getifaddrs */

struct known_interface {
    struct ifaddrs entry;
    char name[IFNAMSIZ];
    union {
        struct sockaddr_in ip;
        struct sockaddr_ll link;
        char room[64];
    } address, mask, everybody;
};

/* A list that a program was given: the machine's own and, behind it, the twin's. */
struct given {
    struct ifaddrs *machine;
    struct known_interface *twin;
    struct given *next;
};
static struct given *lists;
static pthread_mutex_t lists_lock = PTHREAD_MUTEX_INITIALIZER;

static void describe(struct known_interface *to, struct nlmsghdr *link, int inet) {
    struct ifinfomsg *body = NLMSG_DATA(link);
    take_name(to->name, link);
    to->entry.ifa_name = to->name;
    to->entry.ifa_flags = body->ifi_flags;
    to->entry.ifa_addr = (struct sockaddr *)&to->address;
    if (inet) {
        uint32_t mask = 0, ip = address_of(body->ifi_index, &mask);
        put_inet((struct sockaddr *)&to->address, ip);
        put_inet((struct sockaddr *)&to->mask, mask);
        put_inet((struct sockaddr *)&to->everybody, ip | ~mask);
        to->entry.ifa_netmask = (struct sockaddr *)&to->mask;
        to->entry.ifa_broadaddr = (struct sockaddr *)&to->everybody;
        return;
    }
    struct rtattr *hardware = of_link(link, IFLA_ADDRESS);
    to->address.link.sll_family = AF_PACKET;
    to->address.link.sll_ifindex = body->ifi_index;
    to->address.link.sll_hatype = body->ifi_type;
    to->address.link.sll_halen = (unsigned char)RTA_PAYLOAD(hardware);
    memcpy(to->address.room + offsetof(struct sockaddr_ll, sll_addr), RTA_DATA(hardware), RTA_PAYLOAD(hardware));
}

DECLARE_REAL(getifaddrs);
int getifaddrs(struct ifaddrs **to) {
    char links[RECORDS_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    int code = REAL(getifaddrs)(to);
    size_t length = code || !live_root || live_own_network ? 0 : records("links", links), count = 0;
    for (size_t at = 0; at + NLMSG_HDRLEN <= length; at += NLMSG_ALIGN(((struct nlmsghdr *)(links + at))->nlmsg_len))
        count++;
    if (!count) return code;
    struct known_interface *made = calloc(2 * count, sizeof *made);
    struct given *list = malloc(sizeof *list);
    if (!made || !list) {
        free(made), free(list);
        return code;
    }
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        struct nlmsghdr *each = (void *)(links + at);
        describe(&made[i], each, 0);
        describe(&made[count + i], each, 1);
        at += NLMSG_ALIGN(each->nlmsg_len);
    }
    for (size_t i = 0; i + 1 < 2 * count; i++) made[i].entry.ifa_next = &made[i + 1].entry;
    struct ifaddrs **end = to;
    while (*end) end = &(*end)->ifa_next;
    list->machine = *to;
    list->twin = made;
    *end = &made[0].entry;
    pthread_mutex_lock(&lists_lock);
    list->next = lists, lists = list;
    pthread_mutex_unlock(&lists_lock);
    return 0;
}

DECLARE_REAL(freeifaddrs);
void freeifaddrs(struct ifaddrs *list) {
    struct given *found = NULL;
    pthread_mutex_lock(&lists_lock);
    for (struct given **each = &lists; *each; each = &(*each)->next)
        if ((*each)->machine == list || &(*each)->twin->entry == list) {
            found = *each;
            *each = found->next;
            break;
        }
    pthread_mutex_unlock(&lists_lock);
    if (!found) {
        REAL(freeifaddrs)(list);
        return;
    }
    if (found->machine) REAL(freeifaddrs)(found->machine); /* one block: what is chained behind it is not its own */
    free(found->twin);
    free(found);
}
