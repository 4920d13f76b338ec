/* What compilers make of everyday C: switches as tables, loops, cold parts, tail calls, vectors, varargs,
   computed gotos, setjmp. Each function is pure in its arguments; `run` sums them up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;

__attribute__((noinline, cold)) static u64 rare(u64 x) { return x * 31 + 7; }

/* A table whose rare cases lie in the function's cold part. */
__attribute__((noinline)) u64 switch_table(u64 x, u64 y) {
  switch (x % 13) {
  case 0: return y + 1;
  case 1: return y * 3;
  case 2: return y ^ 0x55;
  case 3: return rare(y);
  case 4: return y >> 3;
  case 5: return y << 2;
  case 6: return rare(y) ^ rare(x);
  case 7: return y / (x + 1);
  case 8: return y % (x + 3);
  case 9: return ~y;
  case 10: return y - x;
  default: return x;
  }
}

__attribute__((noinline)) u64 loops(const unsigned char *text, u64 len) {
  u64 hash = 1469598103934665603u, vowels = 0;
  for (u64 i = 0; i < len; i++) {
    switch (text[i]) {
    case 'a': case 'e': case 'i': case 'o': case 'u': vowels++; break;
    case 'x': hash += 3; break;
    case 'y': hash ^= vowels; break;
    case 'z': if (__builtin_expect(vowels > 1000000, 0)) return rare(hash); break;
    }
    hash = (hash ^ text[i]) * 1099511628211u;
    if (hash & 1) for (int k = 0; k < (int)(text[i] & 3); k++) hash += k;
  }
  return hash + vowels;
}

__attribute__((noinline)) static u64 fib(u64 n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

__attribute__((noinline)) double floats(double x, int n) {
  double sum = 0;
  for (int i = 1; i <= n; i++) sum += x > 0.5 ? x / i : -x * i, x = x * 1.1 > 3 ? x - 2.5 : x * 1.1;
  return sum;
}

__attribute__((noinline)) static u64 sum_of(int n, ...) {
  va_list list; u64 sum = 0;
  va_start(list, n);
  while (n-- > 0) sum = sum * 5 + va_arg(list, u64);
  va_end(list);
  return sum;
}

/* An interpreter with a table of labels. `hook` is called at opcode 5. */
__attribute__((noinline)) u64 interpret(const unsigned char *code, u64 acc, void (*hook)(void)) {
  static void *const labels[] = {&&add, &&mul, &&shl, &&xor_, &&dec, &&call, &&end, &&add};
  u64 steps = 0;
#define NEXT goto *labels[*code++ & 7]
  NEXT;
add: acc += 3; steps++; NEXT;
mul: acc *= 5; steps++; NEXT;
shl: acc <<= 1; steps++; NEXT;
xor_: acc ^= steps; steps++; NEXT;
dec: if (acc & 1) acc--; else acc -= 2; steps++; NEXT;
call: if (hook) hook(); acc += 11; steps++; NEXT;
end: return acc + steps;
}

static jmp_buf home;
__attribute__((noinline)) static void leave(int x) { if (x & 1) longjmp(home, x | 1); }
__attribute__((noinline)) u64 jumps(int x) {
  volatile u64 seen = 0;
  int code = setjmp(home);
  if (code == 0) { seen += 1; leave(x); seen += 10; } else seen += 100 + code;
  return seen;
}

__attribute__((noinline)) static int compare(const void *a, const void *b) {
  u64 x = *(const u64 *)a, y = *(const u64 *)b;
  return x < y ? -1 : x > y;
}

__attribute__((noinline)) u64 sorted(u64 seed, int n) {
  u64 values[64], sum = 0;
  for (int i = 0; i < n; i++) values[i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
  qsort(values, n, sizeof *values, compare);
  for (int i = 0; i < n; i++) sum = sum * 31 + (values[i] >> 7);
  return sum;
}

__attribute__((noinline)) u64 tail(u64 n, u64 acc) { return n == 0 ? acc : tail(n - 1, acc * 3 + n); }
__attribute__((noinline)) u64 tail_other(u64 n) { return n & 1 ? tail(n & 15, 1) : switch_table(n, n * 7); }
__attribute__((noinline)) int tiny(void) { return 0; }

/* Known counts: entered once a call, the body n times, the branch every third time. */
__attribute__((noinline)) u64 counted(u64 n) {
  u64 x = n;
  for (u64 i = 0; i < n; i++) { x = x * 7 + 1; if (i % 3 == 0) x ^= rare(i); __asm__ volatile("" : "+r"(x)); }
  return x;
}

u64 run(u64 seed) {
  unsigned char text[256], code[64];
  u64 x = seed;
  for (int i = 0; i < 256; i++) text[i] = (x = x * 6364136223846793005u + 99) >> 56;
  for (int i = 0; i < 63; i++) { code[i] = text[i] % 6; }
  code[40 + seed % 20] = 6; code[63] = 6;
  u64 sum = loops(text, 200 + seed % 50);
  for (int i = 0; i < 30; i++) sum = sum * 31 + switch_table(seed + i, sum);
  sum += fib(5 + seed % 7);
  double f = floats((double)(seed % 100) / 50, 20);
  u64 bits; memcpy(&bits, &f, 8); sum ^= bits;
  sum += sum_of(5, seed, sum, (u64)3, seed * seed, (u64)9);
  sum += interpret(code, seed, 0);
  sum += jumps((int)(seed % 8));
  sum += sorted(seed, 10 + seed % 50);
  sum += tail_other(seed) + tiny() + counted(seed % 20);
  return sum;
}
