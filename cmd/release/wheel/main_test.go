package main

import "testing"

// Versions of releases, and of commits between them, are those of PEP 440.
func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3":                     "1.2.3",
		"1.2.3+dirty":               "1.2.3+dirty",
		"1.2.3+5.gabcdef0":          "1.2.3+5.gabcdef0",
		"1.2.3+5.gabcdef0+dirty":    "1.2.3+5.gabcdef0.dirty",
		"1.0.0~rc1":                 "1.0.0rc1",
		"1.0.0~rc1+2.gabcdef0":      "1.0.0rc1+2.gabcdef0",
		"0~20260102.gabcdef0":       "0.dev20260102+gabcdef0",
		"0~20260102.gabcdef0+dirty": "0.dev20260102+gabcdef0.dirty",
		"0.1.0":                     "0.1.0",
	} {
		if got := python(version); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}
