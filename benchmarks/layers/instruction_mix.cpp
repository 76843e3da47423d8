// The most that the instructions of a product can do on this processor: they alone, on data in the nearest cache, with
// sums in registers. One thread. Prints a name and GMAC/s a line.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>

namespace {

constexpr int kInputs = 32, kRounds = 200000, kRepeats = 7;
alignas(64) std::int8_t weights[kInputs / 2 * 64];
alignas(64) std::int8_t rows[12 * kInputs];

template <class Mix>
void report(const char* name, double macs, const Mix& mix) {
  double least = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    mix();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("%s %.1f\n", name, macs * kRounds / least * 1e-9);
}

__attribute__((target("avx2"))) inline __m256i four(const std::int8_t* place) {
  __m256i x;
  asm volatile("vpbroadcastd %1, %0" : "=x"(x) : "m"(*reinterpret_cast<const std::int32_t*>(place)));
  return x;
}

__attribute__((target("avx2"))) inline __m256i loaded(const std::int8_t* place) {
  __m256i x;
  asm volatile("vmovdqa %1, %0" : "=x"(x) : "m"(*reinterpret_cast<const __m256i*>(place)));
  return x;
}

template <class Sum>
void keep(Sum& sum) {
  asm volatile("" : "+x"(sum));
}

// Codes of four or five bits times bytes, four rows and 16 outputs side by side: sums of 16 bits.
__attribute__((target("avx2"))) void codes_avx2() {
  __m256i sums[4][2] = {};
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 8
    for (int g = 0; g < kInputs / 4; ++g) {
      const __m256i low = loaded(weights + g * 64), high = loaded(weights + g * 64 + 32);
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) {
        const __m256i values = four(rows + m * kInputs + g * 4);
        sums[m][0] = _mm256_add_epi16(sums[m][0], _mm256_maddubs_epi16(low, values));
        sums[m][1] = _mm256_add_epi16(sums[m][1], _mm256_maddubs_epi16(high, values));
      }
    }
  }
  for (auto& sum : sums) keep(sum[0]), keep(sum[1]);
}

// Bytes times bytes, two rows and two vectors of weights side by side: each pair widened to 32 bits.
__attribute__((target("avx2"))) void bytes_avx2() {
  __m256i sums[2][4] = {};
  const __m256i ones = _mm256_set1_epi16(1);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 8
    for (int g = 0; g < kInputs / 4; ++g) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m256i w = loaded(weights + (g / 2 * 4 + v) * 32), magnitudes = _mm256_abs_epi8(w);
#pragma GCC unroll 2
        for (int m = 0; m < 2; ++m) {
          __m256i values = four(rows + m * kInputs + g * 4);
          const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(values, w));
          sums[m][v] = _mm256_add_epi32(sums[m][v], _mm256_madd_epi16(pairs, ones));
        }
      }
    }
  }
  for (auto& sum : sums) keep(sum[0]), keep(sum[1]), keep(sum[2]), keep(sum[3]);
}

// Numbers of 16 bits, as attention over an int8 cache multiplies them, four rows and 16 keys side by side.
__attribute__((target("avx2"))) void words_avx2() {
  __m256i sums[4][2] = {};
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
    for (int pair = 0; pair < kInputs / 2; ++pair) {
      const __m256i low = loaded(weights + pair * 64), high = loaded(weights + pair * 64 + 32);
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) {
        const __m256i values = four(rows + (m * kInputs / 2 + pair) * 4 % sizeof rows);
        sums[m][0] = _mm256_add_epi32(sums[m][0], _mm256_madd_epi16(low, values));
        sums[m][1] = _mm256_add_epi32(sums[m][1], _mm256_madd_epi16(high, values));
      }
    }
  }
  for (auto& sum : sums) keep(sum[0]), keep(sum[1]);
}

// Codes or bytes by VNNI, twelve rows and 16 outputs side by side.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) void codes_avx512() {
  __m512i sums[12] = {};
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 8
    for (int g = 0; g < kInputs / 4; ++g) {
      __m512i w;
      asm volatile("vmovdqa64 %1, %0" : "=v"(w) : "m"(*reinterpret_cast<const __m512i*>(weights + g * 64)));
#pragma GCC unroll 12
      for (int m = 0; m < 12; ++m) {
        asm volatile("vpdpbusd %2%{1to16%}, %1, %0"
                     : "+v"(sums[m])
                     : "v"(w), "m"(*reinterpret_cast<const std::int32_t*>(rows + m * kInputs + g * 4)));
      }
    }
  }
  for (auto& sum : sums) asm volatile("" : "+v"(sum));
}

}  // namespace

int main() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) {
    report("codes, avx2", 4.0 * 16 * kInputs, codes_avx2);
    report("words, avx2", 4.0 * 16 * kInputs, words_avx2);
    report("bytes, avx2", 2.0 * 32 * kInputs, bytes_avx2);
  }
  if (__builtin_cpu_supports("avx512vnni")) report("codes, avx512-vnni", 12.0 * 16 * kInputs, codes_avx512);
}
