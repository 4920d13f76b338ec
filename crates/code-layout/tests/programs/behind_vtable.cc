// A constant table of functions that lies right behind a vtable, and whose entries are compared with the functions.
typedef unsigned long u64;

namespace {
struct A {
  virtual u64 f(u64);
  virtual u64 g(u64);
  u64 k = 1;
};
struct B : A {
  u64 f(u64) override;
};
__attribute__((noinline)) u64 A::f(u64 x) { return x * 3 + k; }
__attribute__((noinline)) u64 A::g(u64 x) { return x * 5 + k; }
__attribute__((noinline)) u64 B::f(u64 x) { return x * 7 + k; }
}

typedef u64 (*Handler)(u64);
__attribute__((noinline)) static u64 by_default(u64 x) { return x * 11 + 1; }
__attribute__((noinline)) static u64 special(u64 x) { return x * 13 + 1; }
static const Handler handlers[2] = {by_default, special};
__attribute__((noinline)) static bool is_default(Handler handler) { return handler == by_default; }

extern "C" u64 table(u64) { return (u64)handlers; }

extern "C" u64 run(u64 seed) {
  A a;
  B b;
  A *volatile object = seed % 2 ? &a : &b;
  const Handler *volatile all = handlers;
  u64 sum = object->f(seed) + object->g(seed);
  for (int i = 0; i < 2; i++) sum = sum * 7 + all[i](sum) + (is_default(all[i]) ? 100 : 0);
  return sum;
}
