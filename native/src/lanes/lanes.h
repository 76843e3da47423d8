// The vector types and operations that kernels are written in: 16 lanes, whatever an instruction set's registers hold.
// Kernels have no intrinsics; they are compiled once for each instruction set, in a namespace of its own, with the
// header that has these operations in its instructions (native/CMakeLists.txt names both). Every set gives the same
// bits: lanes are rounded one by one, each operation alone but for those called fused; sums over lanes are of integers,
// and so exact.
//
// Types. Floats, Ints: 16 of fp32, of int32. Bytes: 64, four to a lane of Ints. Doubles: 8 of fp64. Lanes: the first so
// many of 16. BlockSums, CodeSums<bits>: sums of products, in the form that a set adds them up in.
//
// Constants. kUnsignedOffset: what is added to a byte that products take first, 128 where instructions take it unsigned, else
// 0. Rows that share each read of a weight, as registers hold their sums: kRowTile (with kSumVectors vectors of weights
// at a time, of four), kBlockTile, kUnpackedTile, kCodeTile, kScoreTile (with 32 keys), kWeightTile. kKeyTile: keys whose
// scores are in registers together; kValueTile: vectors of values, with sums of four rows, or of kWeightTile.
// kStateVectors: of a recurrent state's columns, that are walked together.
// kUnpackRows: from how many rows on 4-bit weights are unpacked once for all. kWideRows: from how many on tiles of
// kWideTile rows times kWidePanels panels of a GGUF file's blocks go through a chunk after another.
//
// Lanes       first_lanes(n)             those below n, all from 16 on
// Floats      load(p), load(p, lanes)    others are zero; at any address
//             store(p, x), store(p, x, lanes)
//             all(number)
//             + - * /, fma(a, b, c) a * b + c fused, fms(a, b, c) a * b - c fused
//             max(a, b), min(a, b)       b where either is no number
//             magnitude(x), negated(x), largest_of(x): of all lanes
//             where(lanes, a, b)         a in them, b in others
//             unless_at_most(x, most, value)       zero where x is; value elsewhere, and where x is no number
//             is_zero(x)                 every lane is
//             scaled(x, powers)          x * 2^powers, rounded once; integers from -160 to 160, results may be subnormal
//             swapped<stride>(x)         lanes `stride` apart: 1, 2, 4 or 8
//             load_halves(p), load_halves(p, lanes), store_halves(p, x, lanes)    fp16, to nearest, ties to even
//             gathered(p, offsets)       p[offset] in each lane
//             number_of(ints), bits_of(ints)       their values rounded; their bits as they are
// Ints        load(p), store(p, x), all(number), + - *, min, max
//             shifted_left<n>(x), shifted_right<n>(x) with its sign
//             rounded(floats)            to nearest, ties to even
//             only(x, lanes)             zero in others
//             total_of(x)                of all lanes
//             widened(p)                 16 bytes, signed or unsigned as p is
//             gathered_words(p, offsets, lanes)    32 bits at so many bytes behind p, zero in other lanes
//             store_low_bytes(p, x), store_low_bytes(p, x, lanes)    what is above is dropped
//             store_clamped_bytes(p, x, lanes)     to -128 or 127
// Doubles     load(p), store(p, x), all(number), + * /, fma, total_of(x): of integers
//             widened_low(x), widened_high(x)      lanes 0 to 7, and 8 to 15, of Floats or Ints
//             load_widened(p), store_narrowed(p, x)    8 of fp32, rounded to nearest
// Bytes       load_bytes(p), load_bytes(p, n)      the first n of 64, others zero
//             store_bytes(p, x)
//             in_all_quarters(p)         16 bytes in each quarter
//             in_all_lanes(p)            4 bytes in each lane
//             all_bytes(number)
//             low_halves(x), high_halves(x)        four bits each
//             looked_up(table, x)        in each quarter, of its 16 bytes of a table those at x, below 16
//             added_where(bits, x, value)          `value` more in bytes whose bit of 64 is set
//             transpose(x[16])           rows to columns, of four bytes each
//             interleave(x[4])           bytes of four rows side by side, within quarters; vector v has every quarter's
//                                        components 4 v to 4 v + 3
//             even_words(x), odd_words(x)          bytes at such places, with their signs, as Ints of two each (kernels/no_dot)
//             raised(x)                  signed bytes as products take them first; lowered(x): those raised by 128
//             + - multiplied_words(a, b), all_words(number), twice_in_words(ints): of 16 bits
// Products    add_dot_products(sum, a, b)          four bytes to a lane: a raised, of more than -128, b signed
//             add_full_range_dot_products(sum, a, b)    the same of any a
//             quarter_sums(x[4])         sums of four lanes each: vector v, quarter q to lane 4 v + q
//             paired(a, b)               16 bits each of two Ints, side by side; add_pairs(sum, a, b): pairs' products
// BlockSums   order_block(p, start)      of 32 bytes, each eight's even places first; their sum times -8, and what to
//                                        start a block's sums with, so that codes count from 8
//             block_start(start), add_codes(sums, codes, four): codes of 4 bits times signed bytes, 32 inputs at most
//             add_scaled(total, sums, scales)      scales from -15 to 15
// CodeSums    start(number), add(codes, p): codes of so many bits, those of 8 raised, times p's four bytes, of more than
//             -128; total(); 32 inputs at most
//
// Where there are tiles, kTileRows rows of kTileBytes bytes each (kernels/amx):
// Tiles(first, second)                   while it lives, tiles 0, 1 and 4 have `first` rows, 2, 3 and 5 `second` (or none),
//                                        6 and 7 all
//             load_tile<t>(p, stride), store_tile<t>(p, stride), zero_tile<t>()
//             add_tile_products<is_raised, sums, rows, weights>()    four bytes to a lane: of weights, a row of a tile has
//                                        four of 16 outputs; is_raised: whether rows are the unsigned bytes, or weights
//
// Where there are products of matrices (kernels/i8mm):
// two_in_all_quarters(p, q)              8 bytes of each, side by side, in each quarter
// add_matrix_products(sum, rows, weights)    two rows as above, times eight outputs of eight bytes each: a quarter of sum
//                                        has both rows of two outputs, one after the other
// set_apart(sums[2], rows[2])            those of 16 outputs, row by row
#pragma once

#include <cstddef>
#include <cstdint>

namespace reader_edge {

constexpr std::size_t kLanes = 16, kDoubles = 8, kVector = 64;
constexpr std::size_t kQuarter = 16, kQuarters = kVector / kQuarter;

// Memory that is read soon, into the first cache or the second. Where GCC 12 does not inline these early, it takes them for
// calls without effect and leaves them out.
[[gnu::always_inline]] inline void fetch(const void* place) { __builtin_prefetch(place, 0, 3); }
[[gnu::always_inline]] inline void fetch_early(const void* place) { __builtin_prefetch(place, 0, 2); }

}  // namespace reader_edge

#include READER_EDGE_LANES_HEADER
