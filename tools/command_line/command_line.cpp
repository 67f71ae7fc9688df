// SPDX-License-Identifier: Apache-2.0
#include "command_line/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/nearest.hpp"

namespace shoal::tools {
namespace {

/// An option as a shell completes it.
struct Completed {
  std::vector<std::string> names;  ///< "-n", "--nodes"
  std::string description, value;  ///< `value` is the name of its value; empty: it takes none
  std::vector<std::string> words;  ///< the allowed values, if they are words
};

/// CLI::IsMember describes itself as {one,two}.
std::vector<std::string> words_of(CLI::Option& option) {
  std::string text;
  try {
    text = option.get_validator(0)->get_description();
  } catch (const CLI::OptionNotFound&) {
    return {};
  }
  if (!text.starts_with('{') || !text.ends_with('}')) return {};
  return CLI::detail::split(text.substr(1, text.size() - 2), ',');
}

std::vector<Completed> completed_options(CLI::App& app) {
  std::vector<Completed> options;
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    Completed one;
    for (const std::string& name : option->get_snames()) one.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) one.names.push_back("--" + name);
    one.description = option->get_description();
    if (option->get_items_expected_max() > 0) one.value = option->get_type_name();
    one.value = one.value.substr(0, one.value.find(':'));
    one.words = words_of(*option);
    options.push_back(std::move(one));
  }
  return options;
}

std::string function_name(const CLI::App& app) {
  std::string name = "_" + app.get_name();
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string bash(CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const Completed& option : completed_options(app)) {
    names.insert(names.end(), option.names.begin(), option.names.end());
    if (option.value.empty()) continue;
    cases +=
        fmt::format("    {}) COMPREPLY=($(compgen {} -- \"$word\")); return ;;\n",
                    fmt::join(option.names, " | "),
                    option.words.empty() ? std::string("-f")
                                         : fmt::format("-W \"{}\"", fmt::join(option.words, " ")));
  }
  return fmt::format(
      "# Completes the options of {0}.\n"
      "{1}() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  case $before in\n{2}  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"{3}\" -- \"$word\"))\n"
      "  else\n"
      "    COMPREPLY=({4})\n"
      "  fi\n"
      "}}\n"
      "complete -o filenames -o bashdefault -o default -F {1} {0}\n",
      app.get_name(), function_name(app), cases, fmt::join(names, " "),
      app.get_prefix_command() ? "$(compgen -c -- \"$word\")" : "");
}

/// Text inside the brackets of an _arguments specification, which single quotes surround.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'')
      result += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      result += std::string("\\") + c;
    else
      result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string zsh(CLI::App& app) {
  std::string specifications;
  for (const Completed& option : completed_options(app)) {
    const std::string value =
        option.value.empty() ? ""
        : option.words.empty()
            ? fmt::format(":{}:_files", zsh_text(option.value))
            : fmt::format(":{}:({})", zsh_text(option.value), fmt::join(option.words, " "));
    for (const std::string& name : option.names)
      specifications += fmt::format(" \\\n  '{}[{}]{}'", name, zsh_text(option.description), value);
  }
  if (app.get_prefix_command()) specifications += " \\\n  '*:::program:_normal'";
  // The last line also serves scripts that evaluate this text after compinit.
  return fmt::format(
      "#compdef {0}\n"
      "{1}() {{\n_arguments{2}\n}}\n"
      "if [ \"$funcstack[1]\" = {1} ]; then {1} \"$@\"; else compdef {1} {0}; fi\n",
      app.get_name(), function_name(app), specifications);
}

}  // namespace

std::string completion(CLI::App& app, const std::string& shell) {
  return shell == "zsh" ? zsh(app) : bash(app);
}

std::string unknown_option(CLI::App& app, const std::string& given) {
  std::vector<std::string> names;
  for (const Completed& option : completed_options(app))
    names.insert(names.end(), option.names.begin(), option.names.end());
  const std::string meant = nearest_spelling(given.substr(0, given.find('=')), names);
  return fmt::format("{} is not an option of {}{}", given, app.get_name(),
                     meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
}

std::string describe(CLI::App& app, const CLI::Error& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
    for (const std::string& given : app.remaining(true))
      if (given.starts_with('-')) return unknown_option(app, given);
  return error.what();
}

void finish(CLI::App& app) {
  app.add_option_function<std::string>(
         "--completion",
         [&app](const std::string& shell) { throw CLI::CallForVersion(completion(app, shell), 0); },
         "Print a script that completes the options of this program in a shell")
      ->check(CLI::IsMember({"bash", "zsh"}))
      ->type_name("SHELL");
  app.failure_message([&app](const CLI::App*, const CLI::Error& error) {
    return fmt::format("{} (--help lists the options)\n", describe(app, error));
  });
}

CLI::Validator between(double low, double high) {
  return {[low, high](std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            if (number && value >= low && value <= high) return std::string();
            return fmt::format("{}; allowed: a number from {} to {}", text, low, high);
          },
          fmt::format("FLOAT in [{} - {}]", low, high)};
}

}  // namespace shoal::tools
