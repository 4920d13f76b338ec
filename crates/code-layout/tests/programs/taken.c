/* Addresses inside functions that a program compares with where it is. */
#define _GNU_SOURCE
#include <signal.h>
#include <ucontext.h>
typedef unsigned long u64;

/* Loads that may fault, known by their address; the second entry has one only, and what it stands for. */
struct load { u64 at, go_on; };
extern struct load __start_loads[], __stop_loads[];
static long unknown;

static void on_fault(int signal, siginfo_t *info, void *context) {
  greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
  for (struct load *load = __start_loads; load < __stop_loads; load++)
    if (load->at == (u64)*at) {
      *at = load->go_on;
      return;
    }
  /* Behind a load of 3 bytes, with what was there before. */
  unknown++;
  *at += 3;
}

__attribute__((noinline)) u64 probe(const u64 *from, u64 otherwise) {
  u64 value = 77;
  __asm__ volatile(
      "1: mov (%1), %0\n jmp 3f\n2: mov %2, %0\n3:\n"
      ".pushsection loads,\"aw\"\n .quad 1b, 2b\n.popsection"
      : "+&r"(value) : "r"(from), "r"(otherwise));
  return value * 3 + 1;
}

/* Of which another function knows the begin, which may be the function's own, and the end; and data a part of a third. */
__asm__(
    ".text\n.macro begin name\n.globl \\name\n.type \\name, @function\n\\name: .cfi_startproc\n.endm\n"
    ".macro end name\nret\n.cfi_endproc\n.size \\name, .-\\name\n.endm\n"
    "begin waits\n"
    "waits_from: mov %rdi, %rax\n add $5, %rax\n imul $7, %rax\n"
    "waits_to: inc %rax\n"
    "end waits\n"
    "begin is_waiting\n"
    "lea waits_from(%rip), %rax\n lea waits_to(%rip), %rcx\n"
    "cmp %rax, %rdi\n setae %al\n cmp %rcx, %rdi\n setb %cl\n and %cl, %al\n movzbl %al, %eax\n"
    "end is_waiting\n"
    "begin pauses\n"
    "mov %rdi, %rax\n sub $5, %rax\n"
    "pauses_to: dec %rax\n"
    "end pauses\n"
    "begin is_pausing\n"
    "cmp pauses@GOTPCREL(%rip), %rdi\n setae %al\n cmp pauses_to@GOTPCREL(%rip), %rdi\n setb %cl\n"
    "and %cl, %al\n movzbl %al, %eax\n"
    "end is_pausing\n"
    "begin guarded\n"
    "guarded_from: mov %rdi, %rax\n test %rax, %rax\n je guarded_to\n sub $3, %rax\n"
    "guarded_to: lea (%rax,%rax), %rax\n"
    "end guarded\n"
    "begin middle\n"
    "mov %rdi, %rax\n and $15, %eax\n jmp 2f\n"
    "middle_from: dec %rax\n"
    "2: test %rax, %rax\n jne middle_from\n"
    "middle_to: lea 9(%rdi), %rax\n"
    "end middle\n"
    ".pushsection .data\n.quad guarded_from, guarded_to\n.quad 0\n.quad middle_from, middle_to\n.popsection\n");

extern u64 waits(u64), is_waiting(u64), pauses(u64), is_pausing(u64), guarded(u64), middle(u64);

u64 run(u64 seed) {
  struct sigaction action = {0}, before;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before);
  u64 sum = 0;
  for (u64 i = 0; i < 20; i++) sum = sum * 31 + probe(i % 5 ? &seed : (u64 *)8, i);
  sigaction(SIGSEGV, &before, 0);
  return sum + waits(seed) + is_waiting(seed) + pauses(seed) + is_pausing(seed) + guarded(seed) + middle(seed) + 1000 * unknown;
}
