package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A dataset is a directory, which has a path, or a part of a bucket, which has a
// URL. This package derives the name of the bucket from the URL, and refuses a URL
// that may contain a secret, because URLs are printed, logged and stored with the
// copies. The driver checks the other options of the URL, before it is printed.

// schemes are the schemes of bucket URLs, sorted.
var schemes = []string{"azblob", "gs", "s3"}

var urlPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// IsURL reports whether s begins like a URL. For a directory with such a name, the
// user writes "./" before it.
func IsURL(s string) bool { return urlPattern.MatchString(s) }

type urlValue string

// Set accepts the URL of a bucket, or "" for none. Its errors omit the parts of the
// URL that may be secret.
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

var errCredentials = errors.New("contains credentials, or a part that looks like credentials")

// checkURL returns an error if s is not the URL of a bucket or may contain a secret.
func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || !IsURL(s) { // err is dropped because its text contains s
		return errors.New("is not a URL")
	}
	switch {
	case u.User != nil:
		return errCredentials
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("%s:// is not one of %s://", u.Scheme, strings.Join(schemes, "://, "))
	case u.Hostname() == "":
		return errors.New("has no bucket")
	case u.Port() != "":
		return errors.New("has a port: the bucket comes first, and a server is an option, such as ?endpoint=https://minio.example.org:9000")
	case u.Fragment != "" || strings.HasSuffix(s, "#"):
		return errors.New("contains #, which must be written as %23")
	}
	return checkQuery(u.RawQuery)
}

// secretPattern matches the names of options that may contain a secret. It lists
// parts of the names that vendors and users give to secrets.
var secretPattern = regexp.MustCompile(`(?i)key|secret|sig|token|pass|pwd|cred|sas|auth|bearer|jwt|googleaccessid|connection`)

// checkQuery returns an error if the query of a URL is malformed or may contain a
// secret.
func checkQuery(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return errors.New("has a query that is not of the form name=value&name=value")
	}
	for name := range query {
		if secretPattern.MatchString(name) {
			return errCredentials
		}
	}
	// The endpoint may lack a scheme, so url.Parse would not find its credentials.
	if strings.ContainsAny(strings.Join(query["endpoint"], ""), "@?") {
		return errCredentials
	}
	return nil
}

// Given returns the source as the user wrote it. mount(8) compares it with the line
// of /etc/fstab.
func (s Source) Given() string { return cmp.Or(s.URL, s.Path) }

// Name returns the name that identifies the source in tiers and logs. For a
// directory it is the path. For a bucket it is the URL with the options that
// identify the bucket, without the options that only affect access to it. The name
// of a bucket contains no spaces.
func (s Source) Name() string {
	u, err := url.Parse(s.URL)
	if s.URL == "" || err != nil { // err is nil for every URL that Set accepts
		return s.Path
	}
	name := url.URL{Scheme: u.Scheme, Host: u.Host}
	if path := strings.Trim(u.Path, "/"); path != "" {
		name.Path = "/" + path
	}
	given, identifying := u.Query(), url.Values{}
	if account := given.Get("account"); account != "" {
		identifying.Set("account", account)
	}
	if endpoint := given.Get("endpoint"); endpoint != "" {
		identifying.Set("endpoint", canonicalEndpoint(endpoint))
	}
	name.RawQuery = unescapeQuery.Replace(identifying.Encode())
	return name.String()
}

// canonicalEndpoint returns the URL of a server with a scheme and without a final
// slash.
func canonicalEndpoint(endpoint string) string {
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	return strings.TrimRight(endpoint, "/")
}

// unescapeQuery undoes escapes that url.Values.Encode makes and that a query does
// not need, for readability.
var unescapeQuery = strings.NewReplacer("%3A", ":", "%2F", "/")

// SetSource sets the source to the argument SOURCE, which is a URL or the path of a
// directory. It replaces a path or URL that was set before.
func (c *Config) SetSource(source, origin string) error {
	key, other := "source.path", "source.url"
	if IsURL(source) {
		key, other = other, key
	}
	if err := c.Set(key, source, origin); err != nil {
		return err
	}
	if key == "source.path" {
		c.Source.URL = ""
	} else {
		c.Source.Path = ""
	}
	delete(c.origins, other)
	c.updateDefaults()
	return nil
}

// defaultWorkers is the default of placement.workers. The number of requests in flight adapts to
// the source; this bounds the memory that they take.
const defaultWorkers = 64

// The defaults of mount.consistency. A bucket has no modification times of directories: to see a
// change in it, every cached directory would have to be listed again, and listings are billed.
const (
	consistencyForDirectory               = time.Minute
	consistencyForBucket    time.Duration = 0
)
