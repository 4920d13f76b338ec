// Runs switches whose tables lie behind each other, milliseconds in one call, and aborts on a wrong result. Commands on
// standard input: "q" ends it with 0, all others print how many calls were done.
#include "masked.c"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Atomic long rounds;

static void *work(void *steps) {
    const u64 wanted = masked(12345, *(u64 *)steps);
    for (;;) {
        if (masked(12345, *(u64 *)steps) != wanted) abort();
        rounds++;
    }
}

int main(void) {
    static u64 steps = 100000;
    run(1);
    pthread_t thread;
    pthread_create(&thread, 0, work, &steps);
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'q') _exit(0);
        printf("%ld\n", rounds);
    }
    _exit(3);
}
