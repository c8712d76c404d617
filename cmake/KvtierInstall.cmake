# `cmake --install` and `find_package(kvtier)`: the client library with the headers that its public header
# needs, the .proto files, and the programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(KVTIER_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvtier)

# The public header names common headers as "common/x.h", like all code here: hence the second folder.
target_include_directories(kvtier_client PUBLIC
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/kvtier>)
set_target_properties(kvtier_client PROPERTIES EXPORT_NAME client)
set_target_properties(kvtier_common PROPERTIES EXPORT_NAME common)
set_target_properties(kvtier_proto PROPERTIES EXPORT_NAME proto)

install(TARGETS kvtier_client kvtier_common kvtier_proto
  EXPORT kvtierTargets COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/client/include/kvtier/client.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvtier COMPONENT development)
foreach(header block_key clock model_spec prompt status)
  install(FILES ${PROJECT_SOURCE_DIR}/common/${header}.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvtier/common COMPONENT development)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/
  DESTINATION ${CMAKE_INSTALL_DATADIR}/kvtier/proto COMPONENT development
  FILES_MATCHING PATTERN "*.proto")

install(EXPORT kvtierTargets NAMESPACE kvtier:: DESTINATION ${KVTIER_PACKAGE_DIR}
  COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvtierConfig.cmake.in
  ${PROJECT_BINARY_DIR}/kvtierConfig.cmake INSTALL_DESTINATION ${KVTIER_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvtierConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
    ${PROJECT_BINARY_DIR}/kvtierConfig.cmake
    ${PROJECT_BINARY_DIR}/kvtierConfigVersion.cmake
  DESTINATION ${KVTIER_PACKAGE_DIR} COMPONENT development)
