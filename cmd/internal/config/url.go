package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// A dataset is in a folder, which has a path, or in a bucket, which has a URL.
// What this package knows of URLs is which bucket they name, and that no secret
// may be in them: they are shown, logged, and kept beside the copies. What else
// they may say is known to the driver, who is asked when nothing has been shown.

// schemes are those of URLs, sorted.
var schemes = []string{"azblob", "gs", "s3"}

var urlForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// isURL reports whether s is meant as a URL. A folder of such a name is written
// with "./" before it.
func isURL(s string) bool { return urlForm.MatchString(s) }

type urlValue string

// Set takes the URL of a bucket, "" for none. Its errors show nothing of what
// may be a secret.
func (v *urlValue) Set(s string) error {
	if s != "" {
		if err := checkURL(s); err != nil {
			return err
		}
	}
	*v = urlValue(s)
	return nil
}

func (v *urlValue) String() string { return string(*v) }

var errCredentials = errors.New("has credentials in it, or what looks like some")

func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || !isURL(s) { // the text of err has all of s in it
		return errors.New("is not a URL")
	}
	switch {
	case u.User != nil:
		return errCredentials
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("%s:// is none of %s://", u.Scheme, strings.Join(schemes, "://, "))
	case u.Hostname() == "":
		return errors.New("names no bucket")
	case u.Port() != "":
		return errors.New("has a port: the first name is that of the bucket, and a server is named as in ?endpoint=https://minio.example.org:9000")
	case u.Fragment != "" || strings.HasSuffix(s, "#"):
		return errors.New("has a # in it, which is written %23")
	}
	return checkQuery(u.RawQuery)
}

// secret is part of the names that vendors and people give to secrets.
var secret = regexp.MustCompile(`(?i)key|secret|sig|token|pass|pwd|cred|sas|auth|bearer|jwt|googleaccessid|connection`)

func checkQuery(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return errors.New("has something after the ? that is not name=value&name=value")
	}
	for name := range query {
		if secret.MatchString(name) {
			return errCredentials
		}
	}
	if strings.ContainsAny(strings.Join(query["endpoint"], ""), "@?") { // with or without its scheme
		return errCredentials
	}
	return nil
}

// Given is the source as the user wrote it, by which mount(8) knows it again.
func (s Source) Given() string { return cmp.Or(s.URL, s.Path) }

// Name is what the source is called where one is told from another, in the tiers,
// and in logs: its path; or its URL, with as much of the query as says
// which bucket it is and without what says how to get there. It has no blanks.
func (s Source) Name() string {
	u, err := url.Parse(s.URL)
	if s.URL == "" || err != nil { // Set takes no URL with an error
		return s.Path
	}
	name := url.URL{Scheme: u.Scheme, Host: u.Host}
	if path := strings.Trim(u.Path, "/"); path != "" {
		name.Path = "/" + path
	}
	given, which := u.Query(), url.Values{}
	if account := given.Get("account"); account != "" {
		which.Set("account", account)
	}
	if endpoint := given.Get("endpoint"); endpoint != "" {
		which.Set("endpoint", server(endpoint))
	}
	name.RawQuery = plain.Replace(which.Encode())
	return name.String()
}

// server is the URL of a server in one form.
func server(endpoint string) string {
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	return strings.TrimRight(endpoint, "/")
}

// plain leaves in a query what people read better so, and what needs no escape
// there.
var plain = strings.NewReplacer("%3A", ":", "%2F", "/")

// SetSource is Set for SOURCE of a command line, which is a URL or the path of a
// folder. What was said of a source before is forgotten.
func (c *Config) SetSource(source, origin string) error {
	name, other := "source.path", "source.url"
	if isURL(source) {
		name, other = other, name
	}
	if err := c.Set(name, source, origin); err != nil {
		return err
	}
	if name == "source.path" {
		c.Source.URL = ""
	} else {
		c.Source.Path = ""
	}
	delete(c.origins, other)
	c.derive()
	return nil
}

// How many files are copied at the same time, unless it is said. A bucket
// answers each request only after a while, but many at once.
const (
	workersOfFolder = 8
	workersOfBucket = 64
)

// derive sets the values that nobody has said to the defaults that suit those
// that somebody has.
func (c *Config) derive() {
	if c.origin("placement.workers") != fromDefault {
		return
	}
	c.Placement.Workers = workersOfFolder
	if c.Source.URL != "" {
		c.Placement.Workers = workersOfBucket
	}
}
