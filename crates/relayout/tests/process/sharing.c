// Calls `answer` for ever, as does, after "s", a process that shares the memory; "e" ends that. After "v" a thread waits for a
// child of vfork. Other commands are answered by how often each has called it.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int answer(void);
__asm__(".text\n.globl answer\n.type answer,@function\nanswer:\n.cfi_startproc\n"
        "mov $1, %eax\nnop\nnop\nret\n.cfi_endproc\n.size answer, .-answer\n");

static volatile unsigned long own, others;
static char stack[64 << 10];

static int share(void *unused) {
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int got = answer();
        if (got != 1 && got != 2) _exit(1);
        others++;
    }
}

static void *wait_for_child(void *unused) {
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    return unused;
}

int main(void) {
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("%p\n", (void *)answer);
    char line[64];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    int child = 0, status;
    pthread_t thread;
    for (;; own++) {
        int got = answer();
        if (got != 1 && got != 2) abort();
        if (own % 1000 || poll(&input, 1, 0) != 1) continue;
        if (!fgets(line, sizeof line, stdin)) return 0;
        if (line[0] == 's') child = clone(share, stack + sizeof stack - 64, CLONE_VM | SIGCHLD, 0);
        if (line[0] == 'e') {
            kill(child, SIGKILL);
            // It ran until now.
            if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) abort();
        }
        if (line[0] == 'v') pthread_create(&thread, 0, wait_for_child, 0);
        printf("%lu %lu\n", own, others);
    }
}
