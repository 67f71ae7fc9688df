// SPDX-License-Identifier: Apache-2.0
// command_line.hpp: what the command lines of all programs have in common: --completion, ranges of
// numbers, and messages about unknown options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace shoal::tools {

/// Adds --completion, and completes messages about unknown options. Call it after all options have
/// been added.
void finish(CLI::App& app);

/// Says in one line what is wrong with a command line.
std::string describe(CLI::App& app, const CLI::Error& error);

/// "--nods is not an option of shoal-run; did you mean --nodes?"
std::string unknown_option(CLI::App& app, const std::string& given);

/// A script for `shell`, which is bash or zsh, that completes the options of `app` and the words
/// that they allow. Files complete all other values.
std::string completion(CLI::App& app, const std::string& shell);

/// A number from `low` to `high`. CLI::Range lets "nan" pass.
CLI::Validator between(double low, double high);

}  // namespace shoal::tools
