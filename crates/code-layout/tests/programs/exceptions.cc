// Exceptions through every kind of frame, virtual calls, destructors, exception specifications.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

using u64 = std::uint64_t;

struct Count { u64 &n; explicit Count(u64 &n) : n(n) {} ~Count() { n += 3; } };

struct Base { virtual ~Base() {} virtual u64 get(u64 x) { return x + 1; } virtual u64 other(u64 x) { return x; } };
struct Left : virtual Base { u64 get(u64 x) override { if (x % 5 == 0) throw std::runtime_error("left"); return x * 3; } };
struct Right : virtual Base { u64 other(u64 x) override { if (x % 7 == 0) throw x; return x ^ 9; } };
struct Both : Left, Right { u64 get(u64 x) override { return Left::get(x) + 2; } };

__attribute__((noinline)) u64 deep(u64 n, u64 &count) {
  Count guard(count);
  if (n == 0) throw std::string("bottom");
  if (n % 11 == 10) throw std::out_of_range("eleven");
  u64 below = deep(n - 1, count);
  return below * 2 + n;
}

#if __cplusplus < 201703L
__attribute__((noinline)) u64 specified(u64 x) throw(int, std::string) {
  if (x % 3 == 0) throw 5;
  if (x % 3 == 1) throw std::string("spec");
  return x;
}
#else
__attribute__((noinline)) u64 specified(u64 x) { if (x % 3 == 0) throw 5; if (x % 3 == 1) throw std::string("spec"); return x; }
#endif

__attribute__((noinline)) u64 rethrow(u64 x) {
  try { return specified(x); } catch (int value) { if (x % 2) throw; return value; } catch (...) { throw std::logic_error("changed"); }
}

__attribute__((noinline)) Base *make(u64 x) {
  switch (x % 4) { case 0: return new Base; case 1: return new Left; case 2: return new Right; default: return new Both; }
}

extern "C" u64 run(u64 seed) {
  u64 sum = seed, count = 0;
  for (u64 i = 0; i < 20; i++) {
    try { sum += deep(i + seed % 3, count); }
    catch (const std::string &text) { sum = sum * 3 + text.size(); }
    catch (const std::exception &error) { sum = sum * 5 + std::string(error.what()).size(); }
    try { sum += rethrow(seed + i); } catch (int value) { sum += value * 2; } catch (const std::logic_error &error) { sum ^= error.what()[0]; }
    Base *object = make(seed + i);
    try { sum += object->get(sum % 100) + object->other(sum % 100); }
    catch (u64 value) { sum += value; } catch (const std::runtime_error &) { sum += 77; }
    delete object;
    std::vector<u64> values;
    for (u64 k = 0; k < i; k++) values.push_back(k * sum);
    try { sum += values.at(sum % 16); } catch (const std::out_of_range &) { sum ^= 1; }
  }
  return sum + count;
}
