// Steps between matrix products for x86-64 processors with AVX-512.
#define PREFOLD_AVX512
#define PREFOLD_ISA prefold_rows_avx512
#include "rows.inl"

namespace prefold {
const RowKernel kAvx512Rows = {"avx512",
                             prefold_rows_avx512::normalize,
                             prefold_rows_avx512::rotate,
                             prefold_rows_avx512::multiply,
                             prefold_rows_avx512::add,
                             prefold_rows_avx512::round};
}
