package main

import (
	"fmt"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
)

// coverageLine says whether the dataset is complete in the tiers: whether another epoch would read content from the
// source.
func coverageLine(s control.Status) string {
	c := s.Coverage
	missing := c.Files - c.CopiedFiles
	switch {
	case s.Draining:
		return "no: the source alone is read"
	case c.Complete && c.Files == 0:
		return "yes: the dataset has no files"
	case c.Complete:
		return fmt.Sprintf("yes: all %s (%s) have copies; another epoch reads no content from the source", files(c.Files), size(c.Bytes))
	}
	var line string
	have := fmt.Sprintf("%s (%s) without a copy", files(missing), size(c.Bytes-c.CopiedBytes))
	if c.NamesKnown() {
		line = fmt.Sprintf("no: %s, of %s", have, count(c.Files))
	} else {
		var unknown []string
		if n := c.UnlistedDirs; n > 0 {
			unknown = append(unknown, plural(n, "directory is", "directories are")+" not listed yet")
		}
		if n := c.UnknownNames; n > 0 {
			unknown = append(unknown, plural(n, "name has", "names have")+" no attributes yet")
		}
		answer := "not known"
		if missing > 0 {
			answer = "no"
		}
		line = fmt.Sprintf("%s: %s, of the %s known so far; %s", answer, have, count(c.Files), strings.Join(unknown, ", "))
	}
	if n := c.Recent; n > 0 {
		line += fmt.Sprintf("; %s changed recently", count(n))
	}
	if n := c.NoRoom; n > 0 {
		line += fmt.Sprintf("; no room for %s", count(n))
	}
	if s.Peers != nil {
		line += "; other nodes may have them"
	}
	switch {
	case c.OpenedComplete:
		line += fmt.Sprintf("; another epoch over the %s opened reads no content from the source", files(c.Opened))
	case c.OpenedMissing > 0:
		line += fmt.Sprintf("; %s of the %s opened %s no copy", count(c.OpenedMissing), files(c.Opened), hasOrHave(c.OpenedMissing))
	}
	return line
}

func hasOrHave(n int64) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// placed formats the share of the dataset that has copies, as one word. If not all of its files are known, it says
// that the share is one of the known files.
func placed(p rates.Point) string {
	text := share(p.PlacedShare())
	if !p.NamesKnown && text != "-" {
		return "known:" + text
	}
	return text
}

// ofFiles says of how many files PLACED is the share.
func ofFiles(p rates.Point) string {
	if p.NamesKnown {
		return fmt.Sprintf("%s of the %s of the dataset", count(p.PlacedFiles), files(p.KnownFiles))
	}
	return fmt.Sprintf("%s of the %s known so far", count(p.PlacedFiles), files(p.KnownFiles))
}
