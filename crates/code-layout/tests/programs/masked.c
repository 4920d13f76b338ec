/* Switches of six cases in three bits, without a default: their tables have six entries, and only a mask, or an earlier
   comparison with another number, bounds the index. Read as eight, the last two are the first two of the table behind, which
   has six and a comparison of its own; as each case ends in instructions of one byte, they lead to where one begins. */
typedef unsigned long u64;

#define BYTES __asm__ volatile(".rept 40; nop; .endr" : "+r"(sum));
#define CASE(n, what) case n: what; BYTES break;
#define SWITCH(index, m, rest) \
  switch (index) { \
    CASE(0, sum += m) CASE(1, sum = sum * 3 + m) CASE(2, sum ^= sum >> 7) CASE(3, sum = (sum << 9) | (sum >> 55)) \
    CASE(4, sum -= m << 4) CASE(5, sum = ~sum * m) \
    default: rest; \
  }

static unsigned char first[512], second[512];

__attribute__((noinline)) u64 masked(u64 sum, u64 steps) {
  for (u64 i = 0; i < steps; i++) {
    SWITCH(first[i % 512] & 7, 11, __builtin_unreachable())
    SWITCH(second[i % 512], 5, return sum)
  }
  return sum;
}

__attribute__((noinline)) u64 compared(u64 sum, unsigned one, unsigned two) {
  if (one > 7) return sum + 1;
  SWITCH(one, 7, __builtin_unreachable())
  SWITCH(two, 13, return sum + 2)
  return sum;
}

u64 run(u64 seed) {
  u64 sum = seed;
  for (int i = 0; i < 512; i++) {
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    unsigned one = (seed >> 33) % 6, two = (seed >> 43) % 6;
    first[i] = one;
    second[i] = two;
    sum = compared(sum, i % 32 ? one : 9, i % 16 ? two : 6);
  }
  return masked(sum, 512);
}
