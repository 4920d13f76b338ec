// Two coroutines: one calls `answer` again and again, the other one reads commands, and is what runs meanwhile. On "s" the
// first goes on until it is done with its call, or `yield` is called within it; then its result is printed, 0 for none yet.
// "q" ends with 0. By the argument the stacks lie in the heap; in one mapping; or the first one's is a thread's own (also
// of the first thread), and the second one's an array in an outer frame of it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK_BYTES = 64 << 10 };

int answer(void);
__asm__(".text\n.globl answer\n.type answer,@function\nanswer:\n.cfi_startproc\n"
        "mov $1, %eax\nnop\nnop\nret\n.cfi_endproc\n.size answer, .-answer\n");

static ucontext_t calling, reading, first;
static int result;

void yield(void) { swapcontext(&calling, &reading); }

// Leaves nothing of what was called before.
__attribute__((noinline)) static void wipe(void) {
    volatile char bytes[8 << 10];
    for (unsigned i = 0; i < sizeof bytes; i++) bytes[i] = 0;
}

static void call(void) {
    for (;;) {
        result = answer();
        wipe();
        yield();
    }
}

static void read_commands(void) {
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'q') exit(0);
        result = 0;
        swapcontext(&reading, &calling);
        printf("%d\n", result);
    }
    exit(3);
}

static void prepare(ucontext_t *context, char *stack, void (*function)(void)) {
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = STACK_BYTES;
    makecontext(context, function, 0);
}

static void *on_an_array(void *unused) {
    char stack[STACK_BYTES];
    prepare(&reading, stack, read_commands);
    yield();
    call();
    return unused;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("%p\n%p\n", (void *)answer, (void *)yield);
    const char *where = argc > 1 ? argv[1] : "";
    if (strcmp(where, "array") == 0) on_an_array(0);
    if (strcmp(where, "thread") == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, on_an_array, 0);
        pthread_join(thread, 0);
    }
    char *lower = malloc(STACK_BYTES), *upper = malloc(STACK_BYTES);
    if (strcmp(where, "mapping") == 0) {
        lower = mmap(0, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        upper = lower + STACK_BYTES;
    }
    if (upper < lower) abort();
    prepare(&calling, lower, call);
    prepare(&reading, upper, read_commands);
    swapcontext(&first, &reading);
}
