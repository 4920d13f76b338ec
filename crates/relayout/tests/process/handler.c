// A program that is interrupted behind the first byte of `answer`, and stays in the signal handler until it is told to go on. With an
// argument that handler is interrupted in turn, by one on a stack of its own, which is where it stays. Commands on standard input:
// "t" calls `answer`, which says "in" and waits for "b", then prints what it returned; the end of the input ends it with 0.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int answer(void);
__asm__(".text\n.globl answer\n.type answer,@function\nanswer:\n.cfi_startproc\n"
        "int3\nnop\nnop\nnop\nnop\nmov $1, %eax\nret\n.cfi_endproc\n.size answer, .-answer\n");

static int is_nested;

static void stay(void) {
    char line[16];
    puts("in");
    if (!fgets(line, sizeof line, stdin) || line[0] != 'b') abort();
}

static void on_trap(int signal) {
    (void)signal;
    if (is_nested) raise(SIGUSR1);
    else stay();
}

static void on_user(int signal) {
    (void)signal;
    stay();
}

int main(int argc, char **argv) {
    (void)argv;
    is_nested = argc > 1;
    stack_t own = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction trap = {.sa_handler = on_trap}, user = {.sa_handler = on_user, .sa_flags = SA_ONSTACK};
    if (!own.ss_sp || sigaltstack(&own, 0) || sigaction(SIGTRAP, &trap, 0) || sigaction(SIGUSR1, &user, 0)) abort();
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("%p\n", (void *)answer);
    char line[16];
    while (fgets(line, sizeof line, stdin)) printf("%d\n", answer());
    return 0;
}
