// make_bootstrap.cpp: the bootstrap that the settings ask for.

#include "base/check.hpp"
#include "bootstrap/wire.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal {

std::unique_ptr<Bootstrap> make_bootstrap(const Settings& settings) {
  const std::int64_t pe = settings.pe, n_pes = settings.n_pes;
  const bool named = !settings.unique_id.empty() || !settings.session_id.empty();
  require(n_pes == -1 || (n_pes >= 1 && n_pes <= bootstrap::kMaxPes), Code::invalid_argument,
          "SHOAL_N_PES is {}; allowed: 1 to {}", n_pes, bootstrap::kMaxPes);
  require(n_pes != -1 || pe <= 0, Code::invalid_argument,
          "SHOAL_PE is {} but SHOAL_N_PES is not set: start the program with shoal-run, or set SHOAL_N_PES to the "
          "number of PEs",
          pe);
  if (settings.bootstrap == "single") {
    require(n_pes <= 1, Code::invalid_argument, "SHOAL_BOOTSTRAP is single but SHOAL_N_PES is {}; allowed: 1, or unset",
            n_pes);
    require(pe <= 0, Code::invalid_argument, "SHOAL_BOOTSTRAP is single but SHOAL_PE is {}; allowed: 0, or unset", pe);
    return single_bootstrap();
  }
  require(settings.bootstrap == "uid" || settings.bootstrap == "automatic", Code::invalid_argument,
          "SHOAL_BOOTSTRAP is \"{}\"; allowed: automatic, uid, single", settings.bootstrap);
  if (n_pes == -1) {
    require(settings.bootstrap == "automatic", Code::invalid_argument,
            "SHOAL_BOOTSTRAP is uid but SHOAL_N_PES is not set: start the program with shoal-run, or set SHOAL_PE and "
            "SHOAL_N_PES");
    return single_bootstrap();
  }
  require((pe >= 0 && pe < n_pes) || (pe == -1 && n_pes == 1), Code::invalid_argument,
          "SHOAL_PE is {} with SHOAL_N_PES {}; allowed: 0 to {}", pe == -1 ? "not set" : std::to_string(pe), n_pes,
          n_pes - 1);
  if (n_pes == 1 && !named) return single_bootstrap();
  require(named, Code::invalid_argument,
          "SHOAL_N_PES is {} but neither SHOAL_UNIQUE_ID nor SHOAL_SESSION_ID is set, so PE {} cannot find the others: "
          "start the program "
          "with shoal-run, or set one of the two on all PEs",
          n_pes, pe);
  const auto index = static_cast<std::int32_t>(pe == -1 ? 0 : pe), count = static_cast<std::int32_t>(n_pes);
  if (!settings.unique_id.empty())
    return connect_unique_id(UniqueId::parse(settings.unique_id), index, count, settings);
  return connect_session(index, count, settings);
}

}  // namespace shoal
