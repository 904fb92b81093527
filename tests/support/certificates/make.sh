#!/bin/sh
# Makes the certificates of the TLS tests, valid until 2126; each file holds its key too. Needs the openssl program, the
# tests do not. Nothing but the tests trusts them.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/index.txt"
cat > "$work/ca.cnf" <<END
[ca]
default_ca = own
[own]
database = $work/index.txt
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
END

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$work/$1.key"; }

# certificate NAME SUBJECT SUBJECT_ALT_NAME USAGE END_DATE
certificate() {
    key "$1"
    openssl req -new -config "$work/ca.cnf" -key "$work/$1.key" -subj "/CN=$2" -out "$work/$1.csr"
    {
        echo "basicConstraints = critical, CA:FALSE"
        echo "keyUsage = critical, digitalSignature"
        echo "extendedKeyUsage = $4"
        echo "authorityKeyIdentifier = keyid"
        echo "subjectKeyIdentifier = hash"
        [ -z "$3" ] || echo "subjectAltName = $3"
    } > "$work/$1.ext"
    openssl ca -batch -notext -config "$work/ca.cnf" -cert "$work/authority.crt" -keyfile "$work/authority.key" \
        -in "$work/$1.csr" -out "$work/$1.crt" -extfile "$work/$1.ext" -startdate 20200101000000Z -enddate "$5"
    cat "$work/$1.crt" "$work/$1.key" > "$1.pem"
}

key authority
openssl req -x509 -config "$work/ca.cnf" -extensions authority -key "$work/authority.key" -days 36500 \
    -subj "/CN=Authority of the tests" -out "$work/authority.crt"
cp "$work/authority.crt" authority.pem

here="DNS:localhost, DNS:*.localhost, DNS:target.test, IP:127.0.0.1, IP:::1"
certificate server localhost "$here" serverAuth 21260101000000Z
certificate expired localhost "$here" serverAuth 20210101000000Z
certificate other_host other.test "DNS:other.test" serverAuth 21260101000000Z
certificate client "client of the tests" "" clientAuth 21260101000000Z

key self_signed
openssl req -x509 -config "$work/ca.cnf" -key "$work/self_signed.key" -days 36500 -subj "/CN=localhost" \
    -addext "subjectAltName = $here" -out "$work/self_signed.crt"
cat "$work/self_signed.crt" "$work/self_signed.key" > self_signed.pem

openssl ec -in "$work/client.key" -aes128 -passout pass:secret -out encrypted_client.key 2> /dev/null
