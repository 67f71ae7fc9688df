// SPDX-License-Identifier: Apache-2.0
// table.hpp: cause and cure of every message, by the number in its id ("SHOAL-N114").
//
// The texts of the messages are where they are thrown and begin with their ids. cmake/messages.py
// checks that each of them has a row here and writes docs/reference/messages.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace shoal::messages {

struct Message {
  std::uint16_t number;
  std::string_view cause, cure;
};

// The rows by part of the library, ascending by number.
extern const std::span<const Message> kStart;  ///< N100 to N299: settings, bootstrap, topology
extern const std::span<const Message>
    kTransport;                                 ///< N300 to N499: transports, collectives, device
extern const std::span<const Message> kGroup;   ///< N500 to N699: ep::Group
extern const std::span<const Message> kMemory;  ///< N700 to N899: heap, operations, C interfaces

/// The row of an id as a user may type it: "SHOAL-N114", "n114" or "114". Throws
/// Error{invalid_argument} for anything else, and for a number without a message.
const Message& explain(std::string_view id);

}  // namespace shoal::messages
