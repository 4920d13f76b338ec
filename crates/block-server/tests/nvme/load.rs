//! The load generator's own host against the server.

use std::time::Duration;

use block_load::generator::{Arrivals, Load, Order, run};
use block_load::nvme::Nvme;

use crate::{host, with_server};

#[test]
fn the_load_generators_host_reads_and_writes_over_several_queues() {
    with_server(|_, address| {
        for (namespace, queues) in [(1, 1), (2, 3)] {
            let mut nvme = Nvme::connect(address, host::NQN, namespace, queues).unwrap();
            let load = Load {
                arrivals: Arrivals::Closed { depth: 48 },
                read_share: 0.5,
                len_bytes: 4096,
                read_area: 0..1 << 20,
                write_area: Some(0..1 << 20),
                order: Order::Random,
                warm_up: Duration::ZERO,
                duration: Duration::from_millis(300),
                is_polling: false,
                seed: 1,
            };
            let outcome = run(&mut nvme, &load).unwrap();
            assert_eq!((outcome.errors, outcome.unanswered), (0, 0));
            assert!(!outcome.read_ns.is_empty() && !outcome.write_ns.is_empty());
        }
        // Beyond the end: an error of the command.
        let mut nvme = Nvme::connect(address, host::NQN, 3, 1).unwrap();
        let load = Load {
            arrivals: Arrivals::Closed { depth: 4 },
            read_share: 1.0,
            len_bytes: 4096,
            read_area: 1 << 20..2 << 20,
            write_area: None,
            order: Order::Random,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(50),
            is_polling: true,
            seed: 1,
        };
        let outcome = run(&mut nvme, &load).unwrap();
        assert!(outcome.errors > 0 && outcome.answered == 0, "{outcome:?}");
        assert!(Nvme::connect(address, "nqn.other", 1, 1).is_err());
    });
}
