// Runs for ever on a small stack, most of which it uses, with other data right below. "c" is answered by how many bytes of
// that were changed. No signals are in use.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int answer(void);
__asm__(".text\n.globl answer\n.type answer,@function\nanswer:\n.cfi_startproc\n"
        "mov $1, %eax\nnop\nnop\nret\n.cfi_endproc\n.size answer, .-answer\n");

void on_stack(void *top, void (*function)(void));
__asm__(".text\n.type on_stack,@function\non_stack:\n.cfi_startproc\npush %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6,-16\n"
        "mov %rsp,%rbp\n.cfi_def_cfa_register 6\nmov %rdi,%rsp\ncall *%rsi\nmov %rbp,%rsp\npop %rbp\n.cfi_def_cfa 7,8\nret\n"
        ".cfi_endproc\n.size on_stack,.-on_stack\n");

static struct {
    unsigned char data[1024], stack[1024];
} *block;

static volatile unsigned long rounds;
__attribute__((noinline)) static void work(void) {
    for (int i = 0; i < 20000000; i++) rounds++;
}
__attribute__((noinline)) static void deep(void) {
    volatile char used[780];
    used[0] = 1;
    work();
    used[779] = 1;
}

int main(void) {
    block = aligned_alloc(4096, sizeof *block);
    memset(block->data, 0x5a, sizeof block->data);
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("%p\n", (void *)answer);
    char line[64];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (;;) {
        on_stack(block->stack + sizeof block->stack, deep);
        if (poll(&input, 1, 0) != 1) continue;
        if (!fgets(line, sizeof line, stdin)) return 0;
        int changed = 0;
        for (unsigned i = 0; i < sizeof block->data; i++) changed += block->data[i] != 0x5a;
        printf("%d\n", changed);
    }
}
