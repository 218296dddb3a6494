package main

import "testing"

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"1": 1, "512MiB": 512 << 20, "512mib": 512 << 20, "1.5 GiB": 3 << 29, "2GB": 2e9, "10kB": 10_000, "7B": 7, "3TiB": 3 << 40,
		"": 0, "0": 0, "-1": 0, "MiB": 0, "1XB": 0, "1Mi": 0, "inf": 0, "nan": 0, "1e30": 0, "512MiBMiB": 0, "9999999TiB": 0,
	} {
		got, err := parseBytes("--memory", text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
}
