//! Programs that a seed writes, laid out in random order, with and without counters: the same
//! results.

use std::fmt::Write as _;

use code_layout::{LayoutOrder, LayoutPlan, PatchSelection, Profile};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::process::{Counters, Program};

const FUNCTIONS: usize = 10;
const SEEDS: u64 = 5;

/// Statements of one function. Without a bound some programs are of a size that costs the compiler
/// gigabytes.
const STATEMENTS_MAX: usize = 80;

/// Writes one function's statements.
struct Writer {
    random: ChaCha8Rng,
    function: usize,
    statements: usize,
    text: String,
}

impl Writer {
    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    fn variable(&mut self) -> &'static str {
        ["a", "b", "c", "d"][self.below(4)]
    }

    fn value(&mut self) -> String {
        let (one, two) = (self.variable(), self.variable());
        let number = self.below(1000) + 1;
        match self.below(9) {
            0 => format!("{one} + {two}"),
            1 => format!("{one} * {number}u"),
            2 => format!("{one} ^ ({two} >> {})", number % 60),
            3 => format!("{one} / ({two} % 97 + 1)"),
            4 => format!("({one} > {two} ? {one} - {two} : {number})"),
            5 => format!("memory[{one} % 16] + {number}"),
            6 => format!("(u64)((double)({one} & 0xffff) * 1.5)"),
            7 if self.function > 0 => {
                let callee = self.below(self.function);
                format!("f{callee}({one}, {two} & 0xff)")
            }
            _ => format!("~{one} + {number}"),
        }
    }

    fn statement(&mut self, depth: usize) {
        let variable = self.variable();
        self.statements += 1;
        let kind = if depth == 0 || self.statements > STATEMENTS_MAX {
            self.below(3)
        } else {
            self.below(9)
        };
        match kind {
            0 | 1 => {
                let value = self.value();
                let _ = writeln!(self.text, "{variable} = {value};");
            }
            2 => {
                let value = self.value();
                let _ = writeln!(self.text, "memory[{variable} % 16] ^= {value};");
            }
            3 | 4 => {
                let modulus = self.below(20) + 2;
                let rare = if self.below(3) == 0 { "rare" } else { "" };
                let _ = writeln!(self.text, "if ({rare}({variable} % {modulus} == 1)) {{");
                self.block(depth - 1);
                self.text.push_str("} else {\n");
                self.block(depth - 1);
                self.text.push_str("}\n");
            }
            5 => {
                let times = self.below(6) + 1;
                let _ = writeln!(
                    self.text,
                    "for (int i{depth} = 0; i{depth} < {times}; i{depth}++) {{"
                );
                self.block(depth - 1);
                if self.below(3) == 0 {
                    let _ = writeln!(self.text, "if ({variable} % 11 == 3) break;");
                }
                self.text.push_str("}\n");
            }
            6 => {
                let _ = writeln!(self.text, "if ({variable} % 37 == 5) return {variable};");
            }
            _ => {
                let cases = self.below(12) + 5;
                let _ = writeln!(self.text, "switch ({variable} % {}) {{", cases + 2);
                for case in 0..cases {
                    let _ = writeln!(self.text, "case {case}:");
                    self.statement(depth - 1);
                    match self.below(6) {
                        0 => {}
                        1 => {
                            let _ = writeln!(self.text, "{variable} = cold({variable}); break;");
                        }
                        _ => self.text.push_str("break;\n"),
                    }
                }
                self.text.push_str("default: c++;\n}\n");
            }
        }
    }

    fn block(&mut self, depth: usize) {
        for _ in 0..self.below(3) + 1 {
            self.statement(depth);
        }
    }
}

fn source(seed: u64) -> String {
    let mut writer = Writer {
        random: ChaCha8Rng::seed_from_u64(seed),
        function: 0,
        statements: 0,
        text: String::from(
            "typedef unsigned long u64;\n#define rare(x) __builtin_expect((x), 0)\nstatic u64 memory[16];\nstatic int budget;\n\
             __attribute__((noinline, cold)) static u64 cold(u64 x) { return x * 3 + 1; }\n",
        ),
    };
    for function in 0..FUNCTIONS {
        writer.function = function;
        writer.statements = 0;
        let linkage = if function % 3 == 0 {
            "static __attribute__((noinline))"
        } else {
            ""
        };
        let _ = writeln!(
            writer.text,
            "{linkage} u64 f{function}(u64 a, u64 b) {{\nu64 c = a ^ b, d = {function};\nif (budget-- <= 0) return a + b;"
        );
        for _ in 0..4 {
            writer.statement(3);
        }
        writer
            .text
            .push_str("return a * 3 + b * 5 + c * 7 + d;\n}\n");
    }
    writer.text.push_str("u64 run(u64 seed) {\nu64 sum = seed;\nfor (int i = 0; i < 16; i++) memory[i] = seed + i;\n");
    for function in 0..FUNCTIONS {
        let _ = writeln!(
            writer.text,
            "budget = 20; sum = sum * 31 + f{function}(sum, seed + {function});"
        );
    }
    writer.text.push_str("return sum;\n}\n");
    writer.text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn any_program_in_any_order(seed in any::<u64>(), order in any::<u64>(), level in 0usize..4) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("random.c");
        std::fs::write(&path, source(seed)).expect("written");
        let program = Program::from_path(&path, &[["-O1", "-O2", "-O3", "-Os"][level]]);
        let expected = program.results(SEEDS);
        let functions = program.functions();
        let all = PatchSelection::ALL;
        let empty = Profile::default();

        let plan = LayoutPlan::new(functions.clone(), &empty, LayoutOrder::Random(order));
        let installed = program.install(&plan, all, None);
        prop_assert_eq!(program.results(SEEDS), expected.clone());
        drop(installed);

        let counting = LayoutPlan::counting(functions.clone(), &empty);
        let counters = Counters::near(program.bias, counting.counters());
        let installed = program.install(&counting, PatchSelection::default(), Some(counters.area()));
        prop_assert_eq!(program.results(SEEDS), expected.clone());
        drop(installed);
        let profile = counting.profile(&program.image, &counters.read());

        // Flow is conserved in every block, and `run` was entered once a seed.
        let run = program.symbol(c"run") - program.bias;
        prop_assert_eq!(profile.functions[&run].entries, SEEDS);

        // The profiled layout, with counters on other edges, counts the same.
        let again = LayoutPlan::counting(functions.clone(), &profile);
        let other = Counters::near(program.bias, again.counters());
        let installed = program.install(&again, PatchSelection::default(), Some(other.area()));
        prop_assert_eq!(program.results(SEEDS), expected.clone());
        drop(installed);
        let second = again.profile(&program.image, &other.read());
        prop_assert_eq!(&second.functions, &profile.functions);

        let plan = LayoutPlan::new(functions, &profile, LayoutOrder::Profiled);
        let installed = program.install(&plan, all, None);
        prop_assert_eq!(program.results(SEEDS), expected.clone());
        drop(installed);
        prop_assert_eq!(program.results(SEEDS), expected);
    }
}
