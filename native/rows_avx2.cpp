// Steps between matrix products for x86-64 processors with AVX2 and FMA.
#define PREFOLD_AVX2
#define PREFOLD_ISA prefold_rows_avx2
#include "rows.inl"

namespace prefold {
const RowKernel kAvx2Rows = {"avx2",
                             prefold_rows_avx2::normalize,
                             prefold_rows_avx2::rotate,
                             prefold_rows_avx2::multiply,
                             prefold_rows_avx2::add,
                             prefold_rows_avx2::round};
}
