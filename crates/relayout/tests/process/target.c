// The process under test: threads that call `answer` for ever and abort on anything but 1 or 2, threads that sleep in
// system calls, a count of queued signals, by a third argument a worker of io_uring, or a handler for the first thread's system calls. Commands on standard input: "c" prints the counts, "q" ends with 0.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int answer(void);
__asm__(".text\n.globl answer\n.type answer,@function\nanswer:\n.cfi_startproc\n"
        "mov $1, %eax\nnop\nnop\nret\n.cfi_endproc\n.size answer, .-answer\n");

static _Atomic long calls, ones, twos, signals, sleeps;
static __thread double floating = 1.5;

static void on_signal(int signal) { (void)signal; signals++; }

static void *work(void *unused) {
    (void)unused;
    double x = floating;
    for (;;) {
        int result = answer();
        if (result == 1) ones++;
        else if (result == 2) twos++;
        else abort();
        x = x * 1.0000001 + 0.5;
        if (!(x > 0)) abort();
        if (x > 1e9) x = 1.5;
        calls++;
    }
}

static void *sleep_often(void *unused) {
    (void)unused;
    int epoll = epoll_create1(0);
    struct epoll_event event;
    for (;;) {
        struct timespec nap = {0, 3000000};
        if (nanosleep(&nap, 0) != 0 && errno != EINTR) abort();
        if (poll(0, 0, 3) != 0 && errno != EINTR) abort();
        if (epoll_wait(epoll, &event, 1, 3) != 0 && errno != EINTR) abort();
        sleeps++;
    }
}

static void *sleep_long(void *unused) {
    (void)unused;
    for (;;) {
        if (poll(0, 0, -1) != -1 || errno != EINTR) abort();
    }
}

// Has io_uring read from a pipe that nobody writes to, by a worker of its own (IOSQE_ASYNC in io_uring_enter(2)).
static void read_by_a_worker(void) {
    static char byte;
    struct io_uring_params params = {0};
    int pipes[2], ring = (int)syscall(SYS_io_uring_setup, 1, &params);
    if (ring < 0 || pipe(pipes) != 0) abort();
    char *submitted = mmap(0, params.sq_off.array + 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(0, sizeof *entry, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (submitted == MAP_FAILED || entry == MAP_FAILED) abort();
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_READ, .flags = IOSQE_ASYNC, .fd = pipes[0], .addr = (unsigned long)&byte, .len = 1};
    *(unsigned *)(submitted + params.sq_off.array) = 0;
    atomic_store((_Atomic unsigned *)(submitted + params.sq_off.tail), 1);
    if (syscall(SYS_io_uring_enter, ring, 1, 0, 0, 0, 0) != 1) abort();
}

// All but the C library's own ones.
static void dispatch(void) {
    static char blocked = 1;
    unsigned long start = 0, end = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "/libc.so") && strstr(line, "r-xp")) sscanf(line, "%lx-%lx", &start, &end);
    fclose(maps);
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, end - start, &blocked)) abort();
}

int main(int argc, char **argv) {
    int workers = argc > 1 ? atoi(argv[1]) : 2, sleepers = argc > 2 ? atoi(argv[2]) : 2;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN, &action, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    pthread_t thread;
    if (argc > 3 && !strcmp(argv[3], "io_uring")) read_by_a_worker();
    if (argc > 3 && !strcmp(argv[3], "dispatched")) dispatch();
    for (int i = 0; i < workers; i++) pthread_create(&thread, &attributes, work, 0);
    for (int i = 0; i < sleepers; i++)
        pthread_create(&thread, &attributes, i < 4 ? sleep_often : sleep_long, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("%p\n", (void *)answer);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'q') return 0;
        printf("%ld %ld %ld %ld %ld\n", (long)calls, (long)ones, (long)twos, (long)signals, (long)sleeps);
    }
    return 3;
}
