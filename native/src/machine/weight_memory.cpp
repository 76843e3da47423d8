#include "machine/weight_memory.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace reader_edge {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kRegion = 64 << 20;  // of addresses; pages come when they are written

std::size_t rounded_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

// A piece of address space that weights are cut from, given back when the last of them is gone.
class Region {
 public:
  explicit Region(std::size_t size) : size_(rounded_up(size, kHugePage)) {
#ifdef __linux__
    mapped_size_ = size_ + kHugePage;
    mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    start_ = reinterpret_cast<std::int8_t*>(rounded_up(reinterpret_cast<std::uintptr_t>(mapped_), kHugePage));
    madvise(start_, size_, MADV_HUGEPAGE);  // a system without them says no, and ordinary pages serve
#else
    mapped_ = std::calloc(size_ + kAlignment, 1);
    if (mapped_ == nullptr) throw std::bad_alloc();
    start_ = reinterpret_cast<std::int8_t*>(rounded_up(reinterpret_cast<std::uintptr_t>(mapped_), kAlignment));
#endif
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
#ifdef __linux__
    munmap(mapped_, mapped_size_);
#else
    std::free(mapped_);
#endif
  }

  // The next `size` bytes, or none where the region is full.
  std::int8_t* cut(std::size_t size) {
    if (size > size_ - used_) return nullptr;
    std::int8_t* const piece = start_ + used_;
    used_ = std::min(size_, rounded_up(used_ + size, kAlignment));
    return piece;
  }

 private:
  std::size_t size_, used_ = 0;
#ifdef __linux__
  std::size_t mapped_size_;
#endif
  void* mapped_;
  std::int8_t* start_;
};

constexpr std::size_t kForgetBytes = 8 << 20;  // of a file that are in memory twice
constexpr std::size_t kSmallArray = 256 << 10;  // bytes that are not worth reading the list of all mappings

#ifdef __linux__
// Addresses of all mapped files, as /proc/self/maps has them: begin-end perms offset device inode path.
std::vector<std::pair<std::uintptr_t, std::uintptr_t>> mapped_files() {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string permissions, offset, device, inode, path;
    fields >> std::hex >> begin >> dash >> end >> permissions >> offset >> device >> inode >> path;
    if (path.rfind('/', 0) == 0 && path.rfind("/dev/", 0) != 0) files.emplace_back(begin, end);
  }
  return files;
}
#endif

}  // namespace

std::shared_ptr<std::int8_t> weight_memory(std::size_t size) {
  static std::mutex mutex;
  static std::weak_ptr<Region> last;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Region> region = last.lock();
  std::int8_t* piece = region ? region->cut(size) : nullptr;
  if (piece == nullptr) {
    region = std::make_shared<Region>(std::max(size, kRegion));
    piece = region->cut(size);
    last = region;
  }
  return {region, piece};
}

PassingRows::PassingRows([[maybe_unused]] std::initializer_list<Array> arrays, std::size_t num_rows)
    : num_rows_(num_rows) {
#ifdef __linux__
  const auto is_small = [&](const Array& array) { return num_rows * array.row_bytes < kSmallArray; };
  if (std::all_of(arrays.begin(), arrays.end(), is_small)) return;
  const auto files = mapped_files();
  for (const Array& array : arrays) {
    const auto begin = reinterpret_cast<std::uintptr_t>(array.begin), end = begin + num_rows * array.row_bytes;
    const auto holds = [&](const auto& file) { return file.first <= begin && end <= file.second; };
    if (array.begin == nullptr || std::none_of(files.begin(), files.end(), holds)) continue;
    mapped_.push_back(array);
    row_bytes_ += array.row_bytes;
  }
#endif
}

void PassingRows::read_all(std::size_t panel_rows, const std::function<void(std::size_t row)>& read) const {
  const std::size_t num_panels = (num_rows_ + panel_rows - 1) / panel_rows;
  const std::size_t num_threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, std::max<std::size_t>(num_panels, 1));
  const std::size_t share = (num_panels + num_threads - 1) / num_threads * panel_rows;
  {
    std::vector<std::future<void>> others;  // which wait for their threads when they go
    for (std::size_t first = share; first < num_rows_; first += share) {
      const std::size_t last = std::min(first + share, num_rows_);
      others.push_back(std::async(std::launch::async, [=, this, &read] { read_range(first, last, read); }));
    }
    read_range(0, std::min(share, num_rows_), read);
    for (auto& other : others) other.get();
  }
  forget(0, num_rows_);  // once more: the system maps pages around those that are read
}

void PassingRows::read_range(std::size_t first, std::size_t last,
                             const std::function<void(std::size_t row)>& read) const {
  for (std::size_t row = first; row < last; ++row) {
    read(row);
    if ((row + 1 - first) * row_bytes_ >= kForgetBytes) {
      forget(first, row + 1);
      first = row + 1;
    }
  }
}

// Whole pages, in which a mapping of a file begins and ends.
void PassingRows::forget([[maybe_unused]] std::size_t first, [[maybe_unused]] std::size_t last) const {
#ifdef __linux__
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [begin, row_bytes] : mapped_) {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    const std::uintptr_t start = (address + first * row_bytes) / page * page;
    const std::uintptr_t end = rounded_up(address + last * row_bytes, page);
    madvise(reinterpret_cast<void*>(start), end - start, MADV_DONTNEED);
  }
#endif
}

}  // namespace reader_edge
