//! Actuators of the processor: cache, bandwidth, power, frequency.

use super::*;

const HARDWARE: &[(&str, &str)] = &[
    (
        "sys/fs/resctrl/schemata",
        "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n",
    ),
    ("sys/fs/resctrl/info/L3/cbm_mask", "fffff\n"),
    ("sys/fs/resctrl/info/L3/min_cbm_bits", "2\n"),
    ("sys/fs/resctrl/info/MB/bandwidth_gran", "10\n"),
    ("sys/fs/resctrl/info/MB/min_bandwidth", "20\n"),
    (
        "sys/fs/resctrl/be/schemata",
        "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n",
    ),
    ("sys/fs/resctrl/be/tasks", ""),
    ("sys/class/powercap/intel-rapl:0/enabled", "1\n"),
    (
        "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw",
        "150000000\n",
    ),
    (
        "sys/class/powercap/intel-rapl:0/constraint_0_max_power_uw",
        "150000000\n",
    ),
    ("sys/class/powercap/intel-rapl:0:0/enabled", "1\n"),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
        "3000000\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
        "3000000\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_min_freq",
        "800000\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference",
        "balance_performance\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/energy_performance_available_preferences",
        "default performance balance_performance balance_power power\n",
    ),
];

#[test]
fn cache_ways_are_contiguous_from_the_top_and_not_too_few() {
    let (_dir, roots) = fake(HARDWARE);
    let _guard = fake_kernel::set(kernel);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    let resctrl = Resctrl { name: "be".into() };
    assert_eq!(
        resctrl.probe(&roots).unwrap(),
        "L3 ways and memory bandwidth"
    );
    resctrl.make(&mut journal, &roots, &[1]).unwrap();
    resctrl
        .apply(&mut journal, &roots, &Wanted::Ways(3))
        .unwrap();
    assert!(resctrl.verify(&roots, &Wanted::Ways(3)).unwrap());
    assert!(resctrl.read(&roots).unwrap().contains("L3:0=e0000;1=e0000"));
    // 33 % of the bandwidth is rounded up to what the hardware has.
    resctrl
        .apply(&mut journal, &roots, &Wanted::Share(0.33))
        .unwrap();
    assert!(resctrl.read(&roots).unwrap().contains("MB:0=40;1=40"));
    assert!(resctrl.verify(&roots, &Wanted::Share(0.33)).unwrap());
    for ways in [1, 21] {
        let error = resctrl
            .writes(&roots, &Wanted::Ways(ways))
            .unwrap_err()
            .to_string();
        assert!(error.contains("2 to 20 ways"), "{error}");
    }
    // The kernel refuses a mask with a hole; nothing has changed then.
    let error = journal
        .write(&roots, &resctrl.knobs(&roots)[0], "L3:0=f00f;1=f00f")
        .unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
}

#[test]
fn a_mount_is_advised_only_where_the_kernel_has_the_file_system() {
    let why = |file_systems: &str, cpuinfo: &str| {
        let (_dir, roots) = fake(&[
            ("proc/filesystems", file_systems),
            ("proc/cpuinfo", cpuinfo),
        ]);
        Resctrl { name: "be".into() }.probe(&roots).unwrap_err()
    };
    let without = "processor\t: 0\nflags\t\t: fpu vme\n";
    let with = "processor\t: 0\nflags\t\t: fpu cat_l3 cdp_l3 mba\n";
    assert_eq!(
        why("nodev\tsysfs\nnodev\tresctrl\n", with),
        "not mounted: mount -t resctrl resctrl /sys/fs/resctrl"
    );
    let kernel = why("nodev\tsysfs\n", with);
    assert!(
        kernel.starts_with("the CPU has resource control (cat_l3, mba), but the kernel has none"),
        "{kernel}"
    );
    for cpuinfo in [without, "", "Features\t: fp asimd\n"] {
        assert_eq!(
            why("nodev\tsysfs\n", cpuinfo),
            "the CPU, or the hypervisor, offers no resource control (Intel RDT, AMD QoS)"
        );
    }
}

#[test]
fn power_is_rounded_and_a_locked_limit_is_said() {
    let (_dir, roots) = fake(HARDWARE);
    let _guard = fake_kernel::set(kernel);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    assert_eq!(PowerCap::zones(&roots), ["intel-rapl:0"]);
    let power = PowerCap {
        zone: "intel-rapl:0".into(),
    };
    power
        .apply(&mut journal, &roots, &Wanted::Share(0.777))
        .unwrap();
    assert_eq!(power.read(&roots).unwrap(), "116500000");
    assert!(power.verify(&roots, &Wanted::Share(0.777)).unwrap());
    assert!(power.restore(&mut journal, &roots).unwrap().is_complete());
    assert_eq!(power.read(&roots).unwrap(), "150000000");
    fs::write(roots.sys("class/powercap/intel-rapl:0/enabled"), "0\n").unwrap();
    assert!(power.probe(&roots).unwrap_err().contains("locked"));
    let error = power
        .apply(&mut journal, &roots, &Wanted::Share(0.5))
        .unwrap_err();
    assert!(error.is_missing_privilege(), "{error}");
}

#[test]
fn frequency_is_rounded_by_the_driver_and_preferences_are_words_it_knows() {
    let (_dir, roots) = fake(HARDWARE);
    let _guard = fake_kernel::set(kernel);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    let frequency = Frequency { cpus: vec![0] };
    frequency
        .apply(&mut journal, &roots, &Wanted::Share(0.55))
        .unwrap();
    assert_eq!(frequency.read(&roots).unwrap(), "1600000");
    assert!(frequency.verify(&roots, &Wanted::Share(0.55)).unwrap());
    // Not below what the CPU can do.
    frequency
        .apply(&mut journal, &roots, &Wanted::Share(0.01))
        .unwrap();
    assert_eq!(frequency.read(&roots).unwrap(), "800000");
    let preference = EnergyPreference { cpus: vec![0] };
    let next = preference.neighbour(&roots).unwrap();
    preference.apply(&mut journal, &roots, &next).unwrap();
    assert_eq!(preference.read(&roots).unwrap(), "balance_power");
    let unknown = Wanted::Word("turbo".into());
    assert!(matches!(
        preference.writes(&roots, &unknown),
        Err(HostError::Unfit { .. })
    ));
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(frequency.read(&roots).unwrap(), "3000000");
    assert_eq!(preference.read(&roots).unwrap(), "balance_performance");
}
