// The process under test: two threads that run a few hundred functions in turn and abort on a wrong result, and one way of being
// difficult, named by the first argument. Commands on standard input: "q" ends it with 0, "i" leaves it idle, "t"
// has a child trace it, "s" sandboxes it, "a" and "b" have it run the first or the second half of the functions only; all but the first
// print how many rounds were done.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// 256 functions of 200 to 300 bytes: more than fits into the instruction cache.
#define STEP(n, k) \
    if (x & (1L << ((n + k) % 11))) x = x * (2 * k + 3) + n; \
    else x ^= (x >> (k + 1)) + n * k;
#define F(n) \
    __attribute__((noinline)) static unsigned long f##n(unsigned long x) { \
        STEP(0x##n, 1) STEP(0x##n, 2) STEP(0x##n, 3) STEP(0x##n, 4) STEP(0x##n, 5) STEP(0x##n, 6) STEP(0x##n, 7) STEP(0x##n, 8) \
        STEP(0x##n, 9) return x; }
#define ROW(n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7) F(n##8) F(n##9) F(n##a) F(n##b) F(n##c) \
    F(n##d) F(n##e) F(n##f)
#define NAMES(n) f##n##0, f##n##1, f##n##2, f##n##3, f##n##4, f##n##5, f##n##6, f##n##7, f##n##8, f##n##9, f##n##a, f##n##b, \
    f##n##c, f##n##d, f##n##e, f##n##f,
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(a) X(b) X(c) X(d) X(e) X(f)
ALL(ROW)
static unsigned long (*const functions[256])(unsigned long) = {ALL(NAMES)};

static _Atomic long rounds;
static _Atomic int is_idle;

// All of the functions, and either half of them.
static const struct { int from, to; } workloads[] = {{0, 256}, {0, 128}, {128, 256}};
static _Atomic int workload;

static unsigned long round_of(int which) {
    unsigned long x = 12345;
    for (int i = workloads[which].from; i < workloads[which].to; i++) x = functions[i](x);
    return x;
}

static void *work(void *unused) {
    (void)unused;
    const unsigned long wanted[] = {round_of(0), round_of(1), round_of(2)};
    for (;;) {
        const int which = workload;
        if (round_of(which) != wanted[which]) abort();
        rounds++;
        while (is_idle) usleep(10000);
    }
}

static void traced(void) {
    const pid_t parent = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    int ready[2];
    if (pipe(ready)) abort();
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_SEIZE, parent, 0, 0)) _exit(1);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) abort();
}

static void no_executable_memory(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}

// From now on a call that gives or takes memory ends the process, of all its threads or of this one.
static void sandboxed(int flags) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program)) abort();
}

// A thread that waits in a sandbox.
static void *in_sandbox(void *unused) {
    sandboxed(0);
    for (;;) pause();
    return unused;
}

// Maps all that is free within 2 GiB of its own code, and below the executable's reach.
static void crowded(void) {
    const unsigned long here = (unsigned long)crowded & ~4095UL, reach = 3UL << 30;
    static struct { unsigned long from, to; } holes[1000];
    int count = 0;
    unsigned long end = here - reach, start, stop;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx", &start, &stop) != 2) abort();
        if (start > here + reach) start = here + reach;
        if (start > end && count < 1000) holes[count].from = end, holes[count++].to = start;
        if (stop > end) end = stop;
    }
    fclose(maps);
    for (int i = 0; i < count; i++)
        if (mmap((void *)holes[i].from, holes[i].to - holes[i].from, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) abort();
}

// May map nothing more.
static void full(void) {
    struct rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_AS, &limit);
}

// A thread that waits, uninterruptibly, for a child that never executes anything.
static void *in_vfork(void *unused) {
    (void)unused;
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    return 0;
}

// Ends, or becomes another program, so many microseconds after it was given memory for code.
static struct { const char *how, *path; long after_us; } change;
static void *change_at_install(void *unused) {
    (void)unused;
    static char text[1 << 16];
    for (;;) {
        const int maps = open("/proc/self/maps", O_RDONLY);
        long length = 0, got;
        while ((got = read(maps, text + length, sizeof text - 1 - length)) > 0) length += got;
        close(maps);
        text[length] = 0;
        if (strstr(text, "r-xp 00000000 00:00 0 \n")) break;
        usleep(100);
    }
    usleep(change.after_us);
    if (!strcmp(change.how, "exit")) _exit(0);
    execl(change.path, change.path, "again", (char *)0);
    abort();
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "plain";
    pthread_t thread;
    if (!strcmp(mode, "traced")) traced();
    if (!strcmp(mode, "seccomp")) no_executable_memory();
    if (!strcmp(mode, "main")) {
        setvbuf(stdout, 0, _IOLBF, 0);
        puts("ready");
        work(0);
    }
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, work, 0);
    if (!strcmp(mode, "vfork")) {
        pthread_create(&thread, 0, in_vfork, 0);
        usleep(50000);
    }
    if (!strcmp(mode, "exit") || !strcmp(mode, "exec")) {
        change.how = mode, change.path = argv[0], change.after_us = atol(argv[2]);
        pthread_create(&thread, 0, change_at_install, 0);
    }
    setvbuf(stdout, 0, _IOLBF, 0);
    if (!strcmp(mode, "crowded")) crowded();
    if (!strcmp(mode, "full")) full();
    if (!strcmp(mode, "sandbox")) {
        pthread_create(&thread, 0, in_sandbox, 0);
        usleep(50000);
    }
    if (strcmp(mode, "again")) puts("ready");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'q') _exit(0);
        if (line[0] == 'i') is_idle = 1;
        if (line[0] == 'a' || line[0] == 'b') workload = line[0] == 'a' ? 1 : 2;
        if (line[0] == 't') traced();
        if (line[0] == 's') sandboxed(SECCOMP_FILTER_FLAG_TSYNC);
        printf("%ld\n", rounds);
    }
    _exit(3);
}
