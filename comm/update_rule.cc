#include "comm/update_rule.h"

namespace lockstep::comm {

SquaredNorms UpdateRule::squared_norms(const UpdateSpans<float>& /*spans*/, const UpdateScalars& /*scalars*/) const {
    return {};
}

SquaredNorms UpdateRule::squared_norms(const UpdateSpans<double>& /*spans*/, const UpdateScalars& /*scalars*/) const {
    return {};
}

double UpdateRule::trust_ratio(const SquaredNorms& /*whole*/, const UpdateScalars& /*scalars*/) const {
    return 1;
}

}  // namespace lockstep::comm
